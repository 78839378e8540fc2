//! The table of lints, each with the mistakes that it finds.

/// A rule, given as a message and a source with planted mistakes. The message is from Apple's front
/// end, in public logs of compilations. If no log is known, a section of the Metal Shading Language
/// Specification, version 4, takes its place, or a description of a rule that only our check has.
/// Each line of the source with a `// !` is a mistake. The comment quotes a part of our message.
pub type Lint = (&'static str, &'static str);

const RESTRICTIONS: &str = "Specification 1.5.4, Restrictions";

pub const LINTS: &[Lint] = &[
    (
        "pointer type must have explicit address space qualifier",
        "float bare(float* x) { // ! without an address space
           return *x;
         }
         kernel void unspaced(float* x [[buffer(0)]]) { // ! address space
           x[0] = 0.0f;
         }
         struct Row {
           const float* start; // ! without an address space
           const device float* end;
         };
         const thread float* first(const thread float* x) {
           return x;
         }
         float* same(thread float* x) { // ! without an address space
           return x;
         }
         kernel void cast(device uint* x [[buffer(0)]]) {
           x[0] = *(uint*)(x + 1); // ! without an address space
           x[1] = *(device uint*)(x + 2);
         }",
    ),
    (
        "reference type must have explicit address space qualifier",
        "kernel void reference(device float* x [[buffer(0)]]) {
           float y[2] = {};
           float& z = y[0]; // ! without an address space
           auto& w = y[1];
           w = 2.0f;
           x[0] = z * w;
         }",
    ),
    (
        "cannot bind reference in address space 'constant' to object in default address space in 4th \
         argument",
        "kernel void mixes(device float* x [[buffer(0)]], constant float* y [[buffer(1)]]) {
           device float* z = y; // ! cannot initialize
           z[0] = x[0];
         }
         float taken(const thread float& x) {
           return x;
         }
         kernel void binds(device float* x [[buffer(0)]], constant float& y [[buffer(1)]]) {
           x[0] = taken(y); // ! no matching function
         }",
    ),
    (
        "zero-length arrays are not permitted in C++",
        "kernel void empty(device float* x [[buffer(0)]]) {
           float y[0]; // ! zero size arrays
           x[0] = sizeof(y);
         }",
    ),
    (
        "lambda expressions are not supported in Metal",
        "kernel void lambda(device float* x [[buffer(0)]]) {
           auto one = [](float y) { return y; }; // ! lambda
           x[0] = one(1.0f);
         }",
    ),
    (
        "program scope variable must reside in constant address space",
        "constexpr int WIDTH = 4; // ! address space 'constant'
         constant constexpr int HEIGHT = 4;
         namespace inner {
         float table[2] = {1, 2}; // ! address space 'constant'
         }
         constant float other[] = {1, 2};",
    ),
    (
        "variable in constant address space must be initialized",
        "constant float unset; // ! has to be initialized
         constant bool chosen [[function_constant(0)]];",
    ),
    (
        "variables in function scope cannot be declared static",
        "kernel void keeps(device float* x [[buffer(0)]]) {
           static float y = 0; // ! cannot be static
           struct Local {
             static float one() { return 1.0f; }
           };
           x[0] = y + Local::one();
         }",
    ),
    (
        "automatic variable qualified with an address space",
        "kernel void automatic(device float* x [[buffer(0)]]) {
           device float y; // ! address space
           x[0] = 1.0f;
         }",
    ),
    (
        "variables in the threadgroup address space cannot be declared in a non-qualified function",
        "float helper(float x) {
           threadgroup float t[2]; // ! outside a kernel
           t[0] = x;
           return t[0];
         }",
    ),
    (
        "Specification 4.4, Threadgroup Address Space: no example has an initializer",
        "kernel void initialized(device float* x [[buffer(0)]]) {
           threadgroup float t[2] = {0, 0}; // ! initializer
           x[0] = t[0];
         }",
    ),
    (
        "cannot assign to variable 'c' with const-qualified type 'const constant S &'",
        "struct Pair {
           float a, b;
         };
         constant float fixed[2] = {1, 2};
         kernel void to_constant(constant float* x [[buffer(0)]], constant Pair& p [[buffer(1)]]) {
           x[0] = 1.0f; // ! read-only
           p.b = 1.0f; // ! cannot assign
           fixed[1] = 1.0f; // ! cannot assign
         }
         kernel void copies(device float* x [[buffer(0)]], constant Pair& p [[buffer(1)]]) {
           Pair q = p;
           threadgroup Pair t[1];
           t[0] = q;
           x[0] = t[0].a;
         }",
    ),
    (
        "assigning to 'bfloat' from incompatible type 'float'",
        "kernel void narrows(device bfloat* x [[buffer(0)]], const device float* y [[buffer(1)]]) {
           x[0] = y[0]; // ! implicit conversion
           x[1] = bfloat(y[1]);
           x[2] += y[2]; // ! implicit conversion
           x[3] = sqrt(x[4]); // ! implicit conversion
         }
         bfloat narrowed(float x) {
           return x; // ! implicit conversion
         }",
    ),
    (
        "cannot initialize a variable of type 'bfloat' with an rvalue of type 'float'",
        "kernel void fused(device bfloat* x [[buffer(0)]]) {
           bfloat y = fma(x[0], x[1], x[2]); // ! implicit conversion
           half z = x[3]; // ! cannot initialize
           bfloat w = z; // ! cannot initialize
           x[4] = y + w;
         }",
    ),
    (
        "'buffer' attribute parameter is out of bounds: must be between 0 and 30",
        "kernel void beyond(device float* x [[buffer(31)]], // ! beyond 30
                            threadgroup float* y [[threadgroup(31)]], // ! beyond 30
                            device float* z [[buffer(30)]]) {
           x[0] = y[0] + z[0];
         }",
    ),
    (
        "'buffer' attribute takes one argument",
        "kernel void unnumbered(device float* x [[buffer]]) {} // ! has no index",
    ),
    (
        "cannot reserve 'buffer' resource location at index 1",
        "kernel void twice_bound(device float* x [[buffer(1)]],
                                 device float* y [[buffer(1)]]) { // ! buffer(1) is on two
           x[0] = y[0];
         }",
    ),
    (
        "type 'uint' (aka 'unsigned int') is not valid for attribute 'buffer'",
        "kernel void by_value(device float* x [[buffer(0)]],
                              uint n [[buffer(1)]]) { // ! neither a pointer nor a reference
           x[n] = 0.0f;
         }",
    ),
    (
        "invalid address space qualification for buffer pointee type 'threadgroup float'",
        "kernel void shared(threadgroup float* x [[buffer(0)]], // ! address space 'threadgroup'
                            device float* y [[threadgroup(0)]]) { // ! address space 'device'
           y[0] = x[0];
         }",
    ),
    (
        "x parameter must have buffer attribute",
        "kernel void implicit_index(device float* x) {} // ! no explicit",
    ),
    (
        "invalid type 'int' for input declaration in a kernel function",
        "kernel void unattributed(device float* x [[buffer(0)]], int n) { // ! no attribute
           x[n] = 0.0f;
         }",
    ),
    (
        "unknown attribute 'threadgroup_size_in_threadgroup' ignored",
        "kernel void unknown(device float* x [[buffer(0)]], 
                             uint i [[threadgroup_size_in_threadgroup]]) { // ! unsupported
           x[i] = 0.0f;
         }",
    ),
    (
        "type 'int' is not valid for attribute 'position'",
        "kernel void is_signed(device float* x [[buffer(0)]],
                              int i [[thread_position_in_grid]], // ! type 'int' is not valid
                              uint2 lane [[thread_index_in_simdgroup]], // ! type 'uint2' is not valid
                              ushort simd [[simdgroup_index_in_threadgroup]]) {
           x[i + simd] = float(lane.x);
         }",
    ),
    (
        "type 'constant uint &' (aka 'constant unsigned int &') is not valid for attribute \
         'thread_position_in_grid'",
        "kernel void by_reference(device float* x [[buffer(0)]],
                                  constant uint& i [[thread_position_in_grid]]) { // ! plain value
           x[i] = 0.0f;
         }",
    ),
    (
        "parameter may not be qualified with an address space",
        "kernel void qualified(device float* x [[buffer(0)]],
                               constant uint i [[thread_position_in_grid]]) { // ! plain value
           x[i] = 0.0f;
         }",
    ),
    (
        "declaration with attribute 'thread_position_in_grid' already specified",
        "kernel void repeated(device float* x [[buffer(0)]],
                              uint i [[thread_position_in_grid]],
                              uint k [[thread_position_in_grid]]) { // ! is on two parameters
           x[i] = float(k);
         }",
    ),
    (
        "kernel function cannot have input declarations with 'thread_execution_width' and \
         'threads_per_simdgroup' attributes",
        "kernel void widths(device float* x [[buffer(0)]],
                            uint a [[thread_execution_width]],
                            uint b [[threads_per_simdgroup]]) { // ! exclude each other
           x[a] = float(b);
         }",
    ),
    (
        "'max_total_threads_per_threadgroup' attribute cannot be applied to types",
        "kernel void behind(device float* x [[buffer(0)]])
           [[max_total_threads_per_threadgroup(64)]] { // ! stands behind the parameters
           x[0] = 0.0f;
         }
         [[max_total_threads_per_threadgroup(64)]] kernel void before(device float* x [[buffer(0)]]) {
           x[0] = 0.0f;
         }",
    ),
    (
        "expecting input declarations with either all scalar types or all vector types with the same \
         number of elements",
        "kernel void scalar_size(device float* x [[buffer(0)]],
             uint3 group [[threadgroup_position_in_grid]],
             uint index [[thread_index_in_threadgroup]],
             uint threads [[threads_per_threadgroup]]) { // ! must all be scalars
           x[group.y * threads + index] = 0.0f;
         }
         template <typename T> kernel void vector_size(device T* x [[buffer(0)]],
             uint i [[thread_position_in_grid]],
             const ushort2 size [[threads_per_grid]]) { // ! must all be scalars
           x[i] = T(size.y);
         }
         template [[host_name(\"vector_size\")]] [[kernel]] decltype(vector_size<float>) vector_size<float>;
         kernel void two_widths(device float* x [[buffer(0)]],
             uint2 i [[thread_position_in_grid]],
             ushort lane [[thread_index_in_simdgroup]],
             uint2 size [[threads_per_grid]],
             uint3 groups [[threadgroups_per_grid]]) { // ! must all be scalars
           x[i.y * size.x + i.x] = float(lane + groups.z);
         }
         kernel void one_width(device float* x [[buffer(0)]],
             uint3 i [[thread_position_in_grid]],
             ushort3 size [[threads_per_threadgroup]],
             uint index [[thread_index_in_threadgroup]],
             uint simd [[simdgroup_index_in_threadgroup]]) {
           x[i.x] = float(size.x + index + simd);
         }",
    ),
    (
        "Specification 5.2.3.6, Kernel Function Input Attributes: the data types need to match",
        "kernel void two_types(device float* x [[buffer(0)]],
             ushort i [[thread_position_in_grid]],
             ushort thread_index [[thread_position_in_threadgroup]],
             ushort index [[thread_index_in_threadgroup]],
             uint size [[threads_per_grid]]) { // ! one type
           x[i] = float(size + index + thread_index);
         }",
    ),
    (
        "invalid return type 'float' for kernel function",
        "kernel float returns() { return 0.0f; } // ! must return void",
    ),
    (
        "Specification 5.1.10, Host Name Attribute",
        "template <typename T> kernel void copy(device T* x [[buffer(0)]]) {
           x[0] = T(1);
         }
         template [[host_name(\"copy_float\")]] [[kernel]] decltype(copy<float>) copy<float>;
         template [[host_name(\"copy_float\")]] [[kernel]] decltype(copy<half>) copy<half>; // ! second kernel",
    ),
    (
        "'double' is not supported in Metal",
        "inline double twice(float x) { return 2 * x; } // ! double",
    ),
    (
        "'long long' is not supported in Metal",
        "inline long long wide(int x) { return x; } // ! long long",
    ),
    (
        "'thread_local' is not supported in Metal",
        "kernel void local() { thread_local float y = 0; } // ! thread_local",
    ),
    (
        "Metal does not support the 'register' storage class specifier",
        "kernel void in_register() { register float y = 0; } // ! register",
    ),
    (
        "a rule beyond MSL: no kernel needs a stack whose depth is not known",
        "float factorial(int n) { // ! recursive
           return n < 2 ? 1.0f : n * factorial(n - 1);
         }
         float even(int n);
         float odd(int n) { // ! recursive
           return n == 0 ? 0.0f : even(n - 1);
         }
         float even(int n) { // ! recursive
           return n == 0 ? 1.0f : odd(n - 1);
         }",
    ),
    (
        "'goto' is not supported in Metal",
        "kernel void jumps(device float* x [[buffer(0)]]) {
           goto end; // ! goto
         end:
           x[0] = 0.0f;
         }",
    ),
    (RESTRICTIONS, "struct Shape { virtual float area(); }; // ! virtual"),
    (
        "pointers to functions are not allowed",
        "float one(float x) {
           return x;
         }
         kernel void points(device float* x [[buffer(0)]]) {
           float (*f)(float) = one; // ! pointers to functions
           x[0] = f(1.0f);
         }
         template <float (*F)(float)> float of(float x) { return F(x); }",
    ),
    (
        RESTRICTIONS,
        "kernel void throws(device float* x [[buffer(0)]]) {
           try { // ! exceptions
             throw x[0]; // ! exceptions
           } catch (float y) { // ! exceptions
           }
           x[0] = typeid(x) == typeid(x); // ! run-time type information
           x[1] = *dynamic_cast<device float*>(x); // ! dynamic_cast
           x[2] = *new float(1); // ! new is not
           delete x; // ! delete is not
           asm(\"\"); // ! asm is not
           wchar_t y = 0; // ! wchar_t
           long double z = 0; // ! long double
         }",
    ),
    (
        "a rule beyond MSL: what is instantiated under a name is a kernel",
        "template <typename T> T not_a_kernel(T x) {
           return x;
         }
         template [[host_name(\"no\")]] [[kernel]] decltype(not_a_kernel<float>) not_a_kernel<float>; // ! is not a kernel",
    ),
];

/// Problems that the host's compiler reports only if a source has no errors.
pub const WARNINGS: &[Lint] = &[
    (
        "initialize the variable 'theta_base' to silence this warning",
        "kernel void unwritten(device float* x [[buffer(0)]]) {
           float y;
           x[0] = y; // ! uninitialized
         }",
    ),
    (
        "a rule beyond MSL: clang warns that a function returns no value",
        "float no_value(float x) {
         } // ! does not return a value",
    ),
];
