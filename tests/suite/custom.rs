//! Primitives written through the trait: what they may be, and what their faults become.

mod after;
mod faults;
mod metal;
mod metallib;
mod ops;
mod twin;
