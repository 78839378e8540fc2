//! Tests Metal code in the forms that public kernels of programs other than MLX use.
#![cfg(target_os = "linux")]

mod common;

use common::kernel;
use metal_sim::{Buffer, Constants, Dispatch, Kernel};

/// Runs a kernel with a thread for each element.
fn run(kernel: &Kernel, x: &[f32]) -> Vec<f32> {
    let mut y = vec![0.0f32; x.len()];
    let threads = [x.len() as u32, 1, 1];
    let dispatch = Dispatch::new(kernel).buffer(0, Buffer::input(x));
    let dispatch = dispatch.buffer(1, Buffer::output(&mut y)).threads(threads, threads);
    dispatch.run().unwrap().check().unwrap();
    y
}

/// A conversion to a `typedef` works like a conversion to the type itself, also after `:` and `*`.
#[test]
fn typedefs_are_types() {
    let kernel = kernel(
        "typedef half4 ftype4;\ntypedef half ftype;\ntypedef struct { float a; } Pair;\n\
         constant ftype4 one = ftype4(1, 1, 1, 1);\n\
         kernel void f(const device ftype4* x [[buffer(0)]], device float* y [[buffer(1)]],\n\
         uint i [[thread_position_in_grid]]) {\n\
         ftype limit = i > 1 ?ftype(2):ftype(MAXFLOAT);\n\
         float4 v = (float4)*x + float4(one) * float(min(limit, ftype(3)));\ny[i] = v.x + v.w;\n}",
    );
    // Each word holds two halves: 1 and 2.
    let x = [f32::from_bits(0x4000_3c00); 4];
    assert_eq!(run(&kernel, &x), [9.0, 9.0, 7.0, 7.0]);
}

/// Comparisons give vectors of `bool`, and a kernel can access their elements by name.
#[test]
fn vectors_of_bool() {
    let kernel = kernel(
        "kernel void f(const device float* x [[buffer(0)]], device float* y [[buffer(1)]],\n\
         uint i [[thread_position_in_grid]]) {\n\
         int4 at = int4(0, 1, 2, 3) + int4(x[i]);\nbool4 valid = 0 <= at && at < 3;\n\
         bool2 nan = isnan(float2(x[i], NAN));\nfloat sum = 0;\n\
         metal::vec<bool, 4> kept;\nfor (int k = 0; k < 4; k++) kept[k] = valid[k];\n\
         if (kept.y == true) sum += 1;\nif (!nan.x && nan[1]) sum += 10;\n\
         sum += select(float4(0), float4(100), valid).w + dot(float4(valid), 1000);\n\
         y[i] = any(valid) ? sum : -1;\n}",
    );
    assert_eq!(run(&kernel, &[0.0, 2.0, -1.0, 9.0]), [3011.0, 1010.0, 3111.0, -1.0]);
}

/// Tests matrices that are built from single elements, scaled and added in place. Also tests braced
/// lists among the arguments of a call.
#[test]
fn matrices_and_lists() {
    let kernel = kernel(
        "float weighted(float a, float2 b, float3 c) { return a + 10 * b.y + 100 * c.z; }\n\
         kernel void f(const device float* x [[buffer(0)]], device float* y [[buffer(1)]],\n\
         uint i [[thread_position_in_grid]]) {\n\
         float2x3 m = float2x3(1, 2, 3, 4, x[i], 6);\nm += m;\nm *= half(2);\nm = -(m / 2 - 3.0h * m);\n\
         y[i] = (m * float2(1, 10)).y + weighted(1, {2, 3}, {4, 5, 6});\n}",
    );
    // `m += m` and `m *= half(2)` multiply the second row, which is 2 and x, by 4. The next
    // assignment multiplies the row by 2.5.
    let expected = [0.0f32, 1.0].map(|x| (2.0 + 10.0 * x) * 4.0 * 2.5 + 631.0);
    assert_eq!(run(&kernel, &[0.0, 1.0]), expected);
}

/// A kernel may have the same name as another function, and may use the types of Apple's `simd.h`.
#[test]
fn names_of_kernels_and_types() {
    let kernel = kernel(
        "#include <simd/simd.h>\n#include <metal_texture>\n\
         inline float4 f(float4 x, float slope) { return x * slope; }\n\
         kernel void f(const device float* x [[buffer(0)]], device float* y [[buffer(1)]],\n\
         uint i [[thread_position_in_grid]]) {\n\
         vector_float4 v = x[i];\nsimd::float4 w = f(v, 2);\ny[i] = w.w;\n}",
    );
    assert_eq!(run(&kernel, &[1.0, 3.0]), [2.0, 6.0]);
}

/// Kernels and other functions that take textures are removed before the compilation. A struct
/// whose name begins like that of a resource stays.
#[test]
fn functions_with_textures_are_left_out() {
    let library = common::library(
        "struct tensor_shape { uint n; };\nstruct textureInfo { uint n; };\n\
         float4 clamped(texture2d<half, access::read> t, uint x) { return float4(t.read(uint2(x))); }\n\
         kernel void image(texture2d<half, access::read> t [[texture(0)]],\n\
         device float4* y [[buffer(0)]]) { y[0] = clamped(t, 1); }\n\
         kernel void plain(constant tensor_shape& shape [[buffer(0)]],\n\
         constant textureInfo& info [[buffer(1)]], device uint* y [[buffer(2)]]) {\n\
         y[0] = shape.n + info.n;\n}",
    );
    let refused: Vec<_> = library.refused().map(|(name, _)| name.to_owned()).collect();
    assert_eq!(refused, ["image"]);
    assert!(library.kernel("plain", &Constants::new()).is_ok());
}
