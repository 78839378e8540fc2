//! Rewrites Metal source to CUDA C++ for NVRTC, one kernel at a time.
//!
//! The rewriter turns the kernel's signature into the signature of a `__global__` function, and
//! values such as `[[thread_position_in_grid]]` into variables. Most of the body stays as it is.
//! NVRTC also needs the headers in [`HEADERS`], which define the functions and types of
//! `<metal_stdlib>`.

mod comments;
mod instances;
mod loops;
mod request;
mod signature;
mod storage;
mod swizzles;
mod wide;

use crate::front;
use instances::Source;

pub use request::{Bound, Constant, Fault, Request};
pub use signature::Argument;

/// The name and text of each header that the rewritten source includes.
pub const HEADERS: [(&str, &str); 25] = {
    const ALIAS: &str = "#include <metal_stdlib>\n";
    [
        ("metal_stdlib", include_str!("../include/metal_stdlib")),
        ("msl/types.h", include_str!("../include/msl/types.h")),
        ("msl/math.h", include_str!("../include/msl/math.h")),
        ("msl/integer.h", include_str!("../include/msl/integer.h")),
        ("msl/simdgroup.h", include_str!("../include/msl/simdgroup.h")),
        ("msl/simdgroup_matrix.h", include_str!("../include/msl/simdgroup_matrix.h")),
        ("msl/fragments.h", include_str!("../include/msl/fragments.h")),
        ("msl/atomic.h", include_str!("../include/msl/atomic.h")),
        ("msl/places.h", include_str!("../include/msl/places.h")),
        ("msl/wide.h", include_str!("../include/msl/wide.h")),
        ("msl/words.h", include_str!("../include/msl/words.h")),
        ("metal_atomic", ALIAS),
        ("metal_common", ALIAS),
        ("metal_compute", ALIAS),
        ("metal_geometric", ALIAS),
        ("metal_integer", ALIAS),
        ("metal_limits", ALIAS),
        ("metal_math", ALIAS),
        ("metal_pack", ALIAS),
        ("metal_relational", ALIAS),
        ("metal_simdgroup", ALIAS),
        ("metal_simdgroup_matrix", ALIAS),
        ("metal_type_traits", ALIAS),
        ("metal_types", ALIAS),
        ("metal_uniform", ALIAS),
    ]
};

/// A rewritten kernel, ready for NVRTC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// The CUDA C++. Each line has the same number as in the Metal source.
    pub text: String,
    /// The expression that names the kernel's function for `nvrtcAddNameExpression`.
    pub expression: String,
    /// The arguments of the CUDA function, in order.
    pub arguments: Vec<Argument>,
}

/// Returns the names of a source's kernels.
///
/// # Errors
///
/// Returns an error if an instantiation or a signature cannot be read.
pub fn kernels(source: &str) -> Result<Vec<String>, Fault> {
    let mut source = Source::parse(source);
    let instances = instances::take(&mut source)?;
    let kernels = front::kernels(&source.tokens);
    let plain = kernels.into_iter().filter(|kernel| !kernel.is_template).map(|one| one.name);
    Ok(instances.into_iter().map(|one| one.host_name).chain(plain).collect())
}

/// Rewrites a source so that NVRTC compiles one of its kernels.
///
/// # Errors
///
/// Returns an error if the source does not contain the kernel, or uses a feature of Metal that the
/// rewriter does not support.
///
/// ```
/// use mlx_primitives_build::cuda::{Argument, Bound, Request, rewrite};
///
/// let source = "#include <metal_stdlib>
/// kernel void twice(device float* x [[buffer(0)]], uint i [[thread_position_in_grid]]) {
///   x[i] *= 2.0f;
/// }";
/// let bound = [Bound { index: 0, bytes: 0 }];
/// let request = Request { source, kernel: "twice", bound: &bound, ..Request::default() };
/// let kernel = rewrite(&request)?;
/// assert_eq!(kernel.expression, "twice");
/// assert_eq!(kernel.arguments, [Argument::Buffer(0)]);
/// assert!(kernel.text.contains("__global__ void twice("));
/// # Ok::<(), mlx_primitives_build::cuda::Fault>(())
/// ```
pub fn rewrite(request: &Request) -> Result<Kernel, Fault> {
    let mut source = Source::parse(request.source);
    let instances = instances::take(&mut source)?;
    let missing = storage::function_constants(&mut source, request.constants)?;
    let kernels = front::kernels(&source.tokens);
    let instance = instances.into_iter().find(|instance| instance.host_name == request.kernel);
    let is_instance = instance.is_some();
    let (name, expression) = match instance {
        Some(instance) => (instance.function, instance.expression),
        None => (request.kernel.to_owned(), request.kernel.to_owned()),
    };
    let is_chosen = |one: &&front::Kernel| one.name == name && (is_instance || !one.is_template);
    let Some(chosen) = kernels.iter().find(is_chosen) else {
        let text = format!("the source has no kernel named {}", request.kernel);
        return Err(Fault { file: String::new(), line: 0, text });
    };
    storage::threadgroup_variables(&mut source.tokens);
    wide::pointers(&mut source.tokens);
    for other in kernels.iter().filter(|kernel| kernel.name != name) {
        source.tokens.blank(other.all.clone());
    }
    let arguments = signature::rewrite(&mut source, chosen, request)?;
    let tokens = &source.tokens;
    for at in 0..tokens.len() {
        if missing.iter().any(|name| name == tokens.at(at)) {
            let name = tokens.at(at);
            let text = format!("the launch gives no value for the function constant {name}");
            return Err(source.fault(at, text));
        }
    }
    swizzles::reads(&mut source.tokens);
    loops::unroll(&mut source.tokens);
    Ok(Kernel { text: source.tokens.text(), expression, arguments })
}
