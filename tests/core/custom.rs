//! Primitives that a user writes by implementing `CustomPrimitive`: their features, and the errors
//! that their faults cause.

mod after;
mod faults;
mod metal;
mod metallib;
mod ops;
mod twin;
