// The registry through which the host finds the kernels in a compiled library. It is a linked list
// that static constructors build.
#pragma once

namespace msl {

struct Parameter {
  uint kind; // 0 buffer, 1 threadgroup memory, 2 built-in value
  uint index;
  uint writable;
  uint required;
  const char* name;
};

struct ParameterType {
  uint size;
  uint align; // of a scalar element
};

/** The arguments for one thread. */
struct Arguments {
  void* const* buffers;
  void* const* threadgroup;
  const uint (*values)[4];
};

struct Kernel {
  const char* name;
  const char* file;
  uint line;
  uint max_threads;
  void (*call)(const Arguments&);
  const Parameter* parameters;
  const ParameterType* types;
  uint count;
  const Kernel* next;
};

extern "C" const Kernel* msl_kernels;

template <class A>
struct Pointee {
  typedef A type;
  static constexpr bool pointer = false;
};
template <class A>
struct Pointee<A&> {
  typedef A type;
  static constexpr bool pointer = true;
};
template <class A>
struct Pointee<A*> {
  typedef A type;
  static constexpr bool pointer = true;
};

template <class T>
constexpr uint scalar_align() {
  if constexpr (metal::is_vector_v<T>) {
    return alignof(metal::element_t<T>);
  } else {
    return alignof(T);
  }
}
template <class T>
constexpr ParameterType type_of() {
  if constexpr (__is_void(T)) {
    return {0, 1};
  } else {
    return {sizeof(T), scalar_align<__remove_cv(T)>()};
  }
}

template <class A>
METAL_FUNC A argument(const Parameter& parameter, const Arguments& a) {
  void* const* memory = parameter.kind == 1 ? a.threadgroup : a.buffers;
  if constexpr (__is_reference(A)) {
    return *(typename Pointee<A>::type*)memory[parameter.index];
  } else if constexpr (__is_pointer(A)) {
    return (A)memory[parameter.index];
  } else if constexpr (metal::is_vector_v<A>) {
    A value;
    for (int i = 0; i < metal::width_v<A>; i++) {
      value[i] = metal::element_t<A>(a.values[parameter.index][i]);
    }
    return value;
  } else {
    return A(a.values[parameter.index][0]);
  }
}

template <int... I>
struct Indices {};
template <int N, int... I>
struct Count : Count<N - 1, N - 1, I...> {};
template <int... I>
struct Count<0, I...> {
  typedef Indices<I...> type;
};

template <auto F>
struct Registration;
template <class... A, void (*F)(A...)>
struct Registration<F> {
  static constexpr ParameterType types[] = {
      type_of<typename Pointee<A>::type>()..., ParameterType{0, 1}};
  static inline const Parameter* parameters;

  template <int... I>
  __attribute__((no_sanitize("kernel-address"))) static void apply(
      const Arguments& a, Indices<I...>) {
    F(argument<A>(parameters[I], a)...);
  }
  static void call(const Arguments& a) {
    apply(a, typename Count<sizeof...(A)>::type());
  }

  Kernel kernel;
  Registration(
      const char* name, const char* file, uint line, uint max_threads, const Parameter* table)
      : kernel{name, file, line, max_threads, &call, table, types, sizeof...(A), msl_kernels} {
    parameters = table;
    msl_kernels = &kernel;
  }
};

/** The value of a function constant. The head of every rewritten source defines ConstantValue. */
template <class T, unsigned N>
constexpr T function_constant() {
  constexpr ulong bits = ConstantValue<N>::bits;
  if constexpr (__is_same(T, bool)) {
    return bits != 0;
  } else if constexpr (__is_integral(T)) {
    return T(bits);
  } else if constexpr (sizeof(T) == 4) {
    return __builtin_bit_cast(T, uint(bits));
  } else {
    return __builtin_bit_cast(T, ushort(bits));
  }
}

#ifndef MSL_GPU
/**
 * The memory of a `threadgroup` variable. The executor, the host code that runs kernels, provides
 * it. Each variable of a source has a different ID.
 */
template <int ID, class T>
METAL_FUNC T& threadgroup_variable(const char* name) {
  static char key;
  return *(T*)msl_threadgroup_variable(&key, sizeof(T), name);
}
#endif

} // namespace msl
