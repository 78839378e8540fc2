//! Compares the functions of the shim (this crate's Metal headers) with plain references.
#![cfg(target_os = "linux")]

mod common;

use common::kernel;
use half::{bf16, f16};
use metal_sim::{Buffer, Constants, Dispatch, Kernel, Plain};

/// Evaluates `expression` in one thread for each element. In `expression`, `x` is the element and
/// `i` is its index.
fn map<T: Plain, R: Plain + Default>(
    input: &str,
    output: &str,
    expression: &str,
    x: &[T],
) -> Vec<R> {
    let kernel = kernel(&format!(
        "kernel void f(const device {input}* in [[buffer(0)]], device {output}* out [[buffer(1)]],\n\
         uint i [[thread_position_in_grid]]) {{\n{input} x = in[i];\nout[i] = {output}({expression});\n}}"
    ));
    run(&kernel, x, x.len(), expression)
}

/// Runs a kernel with a thread for each element.
fn run<T: Plain, R: Plain + Default>(kernel: &Kernel, x: &[T], count: usize, what: &str) -> Vec<R> {
    let mut out = vec![R::default(); count];
    let threads = [x.len() as u32, 1, 1];
    let dispatch = Dispatch::new(kernel).buffer(0, Buffer::input(x));
    let dispatch = dispatch.buffer(1, Buffer::output(&mut out)).threads(threads, threads);
    dispatch.run().unwrap().check().unwrap_or_else(|error| panic!("{what}: {error}"));
    out
}

/// Runs several expressions as one kernel, which writes a row of outputs for each expression.
fn table<T: Plain>(input: &str, expressions: &[&str], x: &[T]) -> Vec<Vec<f32>> {
    let body: String = expressions
        .iter()
        .enumerate()
        .map(|(row, text)| format!("out[{row} * count + i] = float({text});\n"))
        .collect();
    let kernel = kernel(&format!(
        "kernel void f(const device {input}* in [[buffer(0)]], device float* out [[buffer(1)]],\n\
         uint i [[thread_position_in_grid]], uint count [[threads_per_grid]]) {{\n\
         {input} x = in[i];\n{body}}}"
    ));
    let out: Vec<f32> = run(&kernel, x, x.len() * expressions.len(), input);
    out.chunks(x.len()).map(<[f32]>::to_vec).collect()
}

type Reference = (&'static str, fn(f64) -> f64);

#[test]
fn math() {
    let references: &[Reference] = &[
        ("sqrt(x)", f64::sqrt),
        ("rsqrt(x)", |x| 1.0 / x.sqrt()),
        ("exp(x)", f64::exp),
        ("exp2(x)", f64::exp2),
        ("exp10(x)", |x| 10f64.powf(x)),
        ("log(x)", f64::ln),
        ("log2(x)", f64::log2),
        ("log10(x)", f64::log10),
        ("sin(x)", f64::sin),
        ("cos(x)", f64::cos),
        ("tan(x)", f64::tan),
        ("sinh(x)", f64::sinh),
        ("cosh(x)", f64::cosh),
        ("tanh(x)", f64::tanh),
        ("asin(x / 8)", |x| (x / 8.0).asin()),
        ("acos(x / 8)", |x| (x / 8.0).acos()),
        ("atan(x)", f64::atan),
        ("asinh(x)", f64::asinh),
        ("acosh(x + 1)", |x| (x + 1.0).acosh()),
        ("atanh(x / 8)", |x| (x / 8.0).atanh()),
        ("sinpi(x)", |x| (std::f64::consts::PI * x).sin()),
        ("cospi(x)", |x| (std::f64::consts::PI * x).cos()),
        ("floor(x)", f64::floor),
        ("ceil(x)", f64::ceil),
        ("trunc(x)", f64::trunc),
        ("round(x)", f64::round),
        ("rint(x)", f64::round_ties_even),
        ("fract(x)", f64::fract),
        ("fabs(-x)", f64::abs),
        ("abs(-x)", f64::abs),
        ("sign(-x)", |_| -1.0),
        ("pow(x, 1.5)", |x| x.powf(1.5)),
        ("powr(x, 0.5)", f64::sqrt),
        ("fmod(x, 1.5)", |x| x % 1.5),
        ("atan2(x, 2.0)", |x| x.atan2(2.0)),
        ("copysign(x, -1.0)", |x| -x),
        ("fma(x, x, 1.0)", |x| x.mul_add(x, 1.0)),
        ("fmin(x, 2.0)", |x| x.min(2.0)),
        ("fmax(x, 2.0)", |x| x.max(2.0)),
        ("fmax(x, NAN)", |x| x),
        ("max3(x, 1.0f, 2.0f)", |x| x.max(2.0)),
        ("min3(x, 1.0f, 2.0f)", |x| x.min(1.0)),
        ("median3(x, 1.0f, 2.0f)", |x| x.clamp(1.0, 2.0)),
        ("ldexp(x, 3)", |x| x * 8.0),
        ("clamp(x, 1.0f, 3.0f)", |x| x.clamp(1.0, 3.0)),
        ("saturate(x)", |x| x.clamp(0.0, 1.0)),
        ("mix(x, 2.0f, 0.25f)", |x| x + (2.0 - x) * 0.25),
        ("step(2.0f, x)", |x| f64::from(x >= 2.0)),
        ("select(x, 9.0f, x > 2)", |x| if x > 2.0 { 9.0 } else { x }),
        ("precise::exp(x)", f64::exp),
        ("fast::exp(x)", f64::exp),
        ("precise::rsqrt(x)", |x| 1.0 / x.sqrt()),
        ("1.5 * x + 2.5e-1", |x| 1.5 * x + 0.25),
        ("length(float3(x, 2, 3))", |x| (x * x + 13.0).sqrt()),
        ("dot(float4(x), float4(1, 2, 3, 4))", |x| 10.0 * x),
        ("normalize(float2(x, 0)).x", |_| 1.0),
        ("cross(float3(1, 0, 0), float3(0, x, 0)).z", |x| x),
        ("float4(float2(x, 2), 3, 4).wzyx[3]", |x| x),
        ("exp(float4(x))[2]", f64::exp),
        ("max(float4(x), 2.0f)[1]", |x| x.max(2.0)),
        ("half(x) * 2.0h", |x| 2.0 * f16::from_f64(x).to_f64()),
        ("float(bfloat(x))", |x| bf16::from_f64(x).to_f64()),
        ("as_type<float>(as_type<uint>(x))", |x| x),
        ("isnan(x) + 2 * isfinite(x) + 4 * isinf(INFINITY)", |_| 6.0),
        ("any(float2(x, 0) > 100) + 2 * all(float2(x, 1) > 0)", |_| 2.0),
        ("numeric_limits<half>::max()", |_| 65504.0),
        ("packed_float3(x, 2, 3)[0] + sizeof(packed_float3)", |x| x + 12.0),
        ("sizeof(float3) + alignof(packed_half4)", |_| 18.0),
    ];
    let x: Vec<f32> = (1..40).map(|i| i as f32 * 0.1875).collect();
    let expressions: Vec<_> = references.iter().map(|(text, _)| *text).collect();
    for ((text, reference), got) in references.iter().zip(table("float", &expressions, &x)) {
        for (x, got) in x.iter().zip(got) {
            let expected = reference(f64::from(*x));
            let bound = 4e-6 * expected.abs().max(0.25);
            assert!(
                (f64::from(got) - expected).abs() <= bound,
                "{text} at {x}: {got}, not {expected}"
            );
        }
    }
}

#[test]
fn half_rounds_after_every_operation() {
    let x: Vec<u16> = (0..200).map(|i| f16::from_f32(i as f32 * 0.37 + 1.0).to_bits()).collect();
    let got: Vec<u16> = map("half", "half", "x * x + x", &x);
    for (x, got) in x.iter().map(|bits| f16::from_bits(*bits)).zip(got) {
        let square = f16::from_f32(x.to_f32() * x.to_f32());
        assert_eq!(got, f16::from_f32(square.to_f32() + x.to_f32()).to_bits());
    }
    let x: Vec<u16> = (0..200).map(|i| bf16::from_f32(i as f32 * 0.37 + 1.0).to_bits()).collect();
    let got: Vec<u16> = map("bfloat", "bfloat", "x * x + x", &x);
    for (x, got) in x.iter().map(|bits| bf16::from_bits(*bits)).zip(got) {
        let square = bf16::from_f32(x.to_f32() * x.to_f32());
        assert_eq!(got, bf16::from_f32(square.to_f32() + x.to_f32()).to_bits());
    }
}

type IntegerReference = (&'static str, fn(i32) -> i32);

#[test]
fn integers() {
    let references: &[IntegerReference] = &[
        ("popcount(x)", |x| x.count_ones() as i32),
        ("clz(x)", |x| x.leading_zeros() as i32),
        ("ctz(x)", |x| x.trailing_zeros() as i32),
        ("clz(ushort(x))", |x| (x as u16).leading_zeros() as i32),
        ("reverse_bits(x)", i32::reverse_bits),
        ("abs(x)", i32::wrapping_abs),
        ("absdiff(x, 5)", |x| x.abs_diff(5) as i32),
        ("addsat(x, 2000000000)", |x| x.saturating_add(2_000_000_000)),
        ("subsat(x, 2000000000)", |x| x.saturating_sub(2_000_000_000)),
        ("hadd(x, 3)", |x| ((i64::from(x) + 3) >> 1) as i32),
        ("rhadd(x, 3)", |x| ((i64::from(x) + 4) >> 1) as i32),
        ("mulhi(x, 123456789)", |x| ((i64::from(x) * 123_456_789) >> 32) as i32),
        ("madhi(x, 123456789, 7)", |x| ((i64::from(x) * 123_456_789) >> 32) as i32 + 7),
        ("mul24(x & 0xffff, 9)", |x| (x & 0xffff) * 9),
        ("rotate(x, 7)", |x| x.rotate_left(7)),
        ("extract_bits(x, 3, 5)", |x| x << 24 >> 27),
        ("extract_bits(uint(x), 3, 5)", |x| x >> 3 & 31),
        ("insert_bits(x, 21, 4, 6)", |x| (x & !(63 << 4)) | (21 << 4)),
        ("max(x, 7)", |x| x.max(7)),
        ("min(x, 7)", |x| x.min(7)),
        ("clamp(x, -5, 5)", |x| x.clamp(-5, 5)),
        ("popcount(int2(x, 1)).y + x", |x| x.wrapping_add(1)),
        ("pack_float_to_unorm4x8(float4(0, 1, 0.5, 1))", |_| 0xff80_ff00u32 as i32),
        ("unpack_snorm4x8_to_float(0x7f810000).z * 8", |_| -8),
        ("unpack_unorm4x8_to_float(0xff).x * 3", |_| 3),
        ("INT_MAX - int(numeric_limits<uint>::max() / 2)", |_| 0),
        ("char(200) + uchar(200)", |_| 144),
    ];
    let x = [0, 1, -1, 5, 77, -12345, 0x1234_5678, i32::MAX, i32::MIN, -2_000_000_000];
    let body: String = references
        .iter()
        .enumerate()
        .map(|(row, (text, _))| format!("out[{row} * 10 + i] = {text};\n"))
        .collect();
    let kernel = kernel(&format!(
        "kernel void f(const device int* in [[buffer(0)]], device int* out [[buffer(1)]],\n\
         uint i [[thread_position_in_grid]]) {{\nint x = in[i];\n{body}}}"
    ));
    let mut out = vec![0i32; 10 * references.len()];
    Dispatch::new(&kernel)
        .buffer(0, Buffer::input(&x))
        .buffer(1, Buffer::output(&mut out))
        .threads([10, 1, 1], [10, 1, 1])
        .run()
        .unwrap()
        .check()
        .unwrap();
    for ((text, reference), got) in references.iter().zip(out.chunks(10)) {
        for (x, got) in x.iter().zip(got) {
            assert_eq!(*got, reference(*x), "{text} at {x}");
        }
    }
}

/// Tests names of Apple's headers that kernels use without an include, and members that differ only
/// in their address space.
#[test]
fn names_of_apples_headers() {
    let kernel = kernel(
        "template <class T> struct Pair {\nT value;\nconstexpr Pair<T>() = default;\n\
         constexpr Pair<T>() threadgroup = default;\nT get() const { return value; }\n\
         T get() const threadgroup { return value; }\n};\n\
         namespace metal { template <class T> struct _numeric_limits_impl<Pair<T>> {\n\
         static constexpr T lowest() { return numeric_limits<T>::lowest(); }\n}; }\n\
         constant uint base [[function_constant(100 + 3)]];\n\
         kernel void f(device float* y [[buffer(0)]], uint i [[thread_position_in_grid]]) {\n\
         threadgroup Pair<float> pairs[4];\npairs[i].value = i;\nfloat values[4] = {\n\
         pairs[i].get() + float(vec_elements<float3>::value),\n\
         float(__is_valid_simdgroup_type<half2>::value) + float(MAXHALF),\n\
         as_type<float>(_fp_encoding_traits<float>::inf_mask),\n\
         numeric_limits<Pair<float>>::lowest(),\n};\n\
         y[i] = is_function_constant_defined(base) ? float(base) : values[i];\n}",
    );
    let mut y = [0.0f32; 4];
    let dispatch = Dispatch::new(&kernel).buffer(0, Buffer::output(&mut y));
    dispatch.threads([4, 1, 1], [4, 1, 1]).run().unwrap().check().unwrap();
    assert_eq!(y, [3.0, 65505.0, f32::INFINITY, f32::MIN]);
}

/// Kernels that need a resource that the simulator lacks are removed before the compilation. The
/// library lists their names as refused. The other kernels of the source run.
#[test]
fn missing_resources_are_named() {
    let library = common::library(
        "struct Table { device float* x [[id(0)]]; };\nstruct Plain { float x[2]; };\n\
         kernel void image(texture2d<float> t [[texture(0)]], device float* y [[buffer(0)]]) {\n\
         threadgroup float s[2];\ns[0] = t.read(uint2(0)).x;\n}\n\
         template <class T> kernel void tables(constant Table& table [[buffer(0)]]) {\n\
         table.x[0] = T(1);\n}\n\
         template [[host_name(\"tables_f\")]] kernel void tables<float>(constant Table&);\n\
         kernel void plain(constant Plain& x [[buffer(0)]], device float* y [[buffer(1)]]) {\n\
         y[0] = x.x[1];\n}",
    );
    let names: Vec<_> = library.kernels().unwrap().into_iter().map(|kernel| kernel.name).collect();
    assert_eq!(names, ["plain"]);
    let refused: Vec<_> = library.refused().map(|(name, _)| name.to_owned()).collect();
    assert_eq!(refused, ["image", "tables", "tables_f"]);
    let said = |name| match library.kernel(name, &Constants::new()) {
        Err(error) => error.to_string(),
        Ok(_) => panic!("{name} runs"),
    };
    let text = said("image");
    assert!(text.starts_with("image takes a texture, 't' at ") && text.contains(":5, "), "{text}");
    assert!(said("tables_f").starts_with("tables_f takes an argument buffer, 'table' at "));
}

/// Tests conversions to types that a template or an alias names, and conversions of braced lists to
/// vectors.
#[test]
fn conversions() {
    let kernel = kernel(
        "#define HALF(x) ((x) / 2)\ntypedef half4 wide_t;\n\
         template <typename T, class N> T wide(float4 x, N n) {\n\
         return T(x) + (T) (x * n) + (T) (bfloat4) x + static_cast<T>(x);\n}\n\
         template <typename T> T sum(uint3 v, constant T* p) { return T(v.x) * metal::vec<T, 2>(0, 1).y + v.y + v.z + p[0]; }\n\
         float2 pair(float x, float y);\nconstant float one[1] = {1};\nstruct Pair { int a; float b; };\n\
         float both(Pair p) { return p.a + p.b; }\n\
         kernel void f(device float* y [[buffer(0)]], uint i [[thread_position_in_grid]]) {\n\
         simdgroup_matrix<float, 8, 8> m(2.0f);\nm = m * m;\nfloat diagonal = 0;\nshort2 at((i * 0) + 1, i);\n\
         #pragma unroll (HALF(4))\nfor (int k = 0; k < 2; k++) diagonal += m.thread_elements()[k];\n\
         float values[4] = {\nfloat(static_cast<bfloat>(half(2))) + float(bfloat2(half2(1)).x) * at.x,\n\
         sum<float>({2 * i, i, 3}, one) + both({2, 3.0f}),\n\
         wide<half4>(float4(i), 2).x + float(((wide_t) float4(5)).y),\nsimd_sum(diagonal),\n};\n\
         y[i] = values[i % 4];\n}",
    );
    let mut y = [0.0f32; 32];
    let dispatch = Dispatch::new(&kernel).buffer(0, Buffer::output(&mut y));
    dispatch.threads([32, 1, 1], [32, 1, 1]).run().unwrap().check().unwrap();
    assert_eq!(y[..4], [3.0, 12.0, 15.0, 32.0]);
}

/// A kernel may have the name of one of Metal's functions. Packed vectors compute like other
/// vectors.
#[test]
fn packed_vectors() {
    let kernel = kernel(
        "kernel void dot(const device packed_float3* x [[buffer(0)]], device float* y [[buffer(1)]],\n\
         uint i [[thread_position_in_grid]]) {\n\
         packed_float3 p = packed_float3(x[i].x, float2(x[i].y, 1));\n\
         p += x[i] * 2.0f - x[i] / packed_float3(float2(1, 2), 4);\n\
         y[i] = dot(float3(p), 0.5f + float3(x[i]));\n}",
    );
    let x: [f32; 12] = std::array::from_fn(|i| i as f32);
    let expected: Vec<f32> = x
        .chunks(3)
        .map(|x| {
            let p = [x[0] + 2.0 * x[0] - x[0], x[1] + 1.5 * x[1], 1.0 + 1.75 * x[2]];
            p.iter().zip(x).map(|(p, x)| p * (0.5 + x)).sum()
        })
        .collect();
    let mut y = vec![0.0f32; 4];
    let dispatch = Dispatch::new(&kernel).buffer(0, Buffer::input(&x));
    let dispatch = dispatch.buffer(1, Buffer::output(&mut y)).threads([4, 1, 1], [4, 1, 1]);
    dispatch.run().unwrap().check().unwrap();
    assert_eq!(y, expected);
}

/// Tests casts and functions of vectors and numbers, in templates whose `T` may be a vector.
#[test]
fn vectors_with_numbers() {
    let kernel = kernel(
        "template <typename T, typename U> T turned(U x) {\n\
         T y = (T) -x;\nreturn y - (T) fmax(0, -x) + (T) fmin(1, x) + (T) max(2, x);\n}\n\
         kernel void f(const device float* x [[buffer(0)]], device float* y [[buffer(1)]],\n\
         uint i [[thread_position_in_grid]]) {\n\
         half4 r = turned<half4>(float4(x[i], 0, 1, 2));\n\
         y[i] = r.x + pow(float2(r.y), 2).x + smoothstep(0, 4, float2(x[i], 9)).x;\n}",
    );
    let x = [-3.0f32, 0.5, 1.0, 4.0];
    let expected = x.map(|x: f32| {
        let part = (x / 4.0).clamp(0.0, 1.0);
        let r = -x - (-x).max(0.0) + x.min(1.0) + x.max(2.0);
        r + 4.0 + part * part * (3.0 - 2.0 * part)
    });
    assert_eq!(run::<f32, f32>(&kernel, &x, x.len(), "vectors"), expected);
}
