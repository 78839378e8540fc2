//! Takes the place of `simulate.rs` wherever Metal is not simulated: nothing ever gets here.

use crate::error::{Error, Result};
use crate::ffi::bridge::SimulatedDispatch;

pub(crate) enum SimulatedLibrary {}

pub(crate) enum SimulatedKernel {}

pub(crate) fn simulated_library(_source: &str) -> Result<Box<SimulatedLibrary>> {
    Err(Error::Mlx("[simulate] mlx-primitives was built without the simulator".to_owned()))
}

pub(crate) fn simulated_kernel(
    library: &SimulatedLibrary,
    _name: &str,
) -> Result<Box<SimulatedKernel>> {
    match *library {}
}

/// # Safety
/// None is needed.
pub(crate) unsafe fn simulate(
    kernel: &SimulatedKernel,
    _dispatch: &SimulatedDispatch,
) -> Result<()> {
    match *kernel {}
}
