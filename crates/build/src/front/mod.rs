//! Parses Metal source: its tokens, functions, kernels, instantiations, threadgroup variables and
//! function constants. The simulator's rewriter, the simulator's rules and the CUDA rewriter share
//! this code.
#![allow(missing_docs)]

mod functions;
mod kernels;
mod storage;
mod tokens;

pub use functions::{Function, functions};
pub use kernels::{Attribute, Instance, Kernel, Parameter, Role, attributes, instance, kernels};
pub use storage::{
    FunctionConstant, ThreadgroupVariables, Variable, function_constants, threadgroup_variables,
};
pub use tokens::{Kind, SCALARS, SPACES, Tokens, VALUES};
