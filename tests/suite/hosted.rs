//! Primitives written through the trait: what they may be, and what their faults become.

mod faults;
mod metal;
mod ops;
mod twin;
