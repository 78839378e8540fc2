//! Takes the place of `simulate.rs` in builds without the simulator, where nothing calls it.

use crate::error::{Error, Result};

pub(crate) enum SimulatedLibrary {}

pub(crate) enum SimulatedKernel {}

pub(crate) struct SimulatedDispatch;

impl SimulatedDispatch {
    pub(crate) fn count_threads(&mut self) {}

    pub(crate) fn bind(&mut self, _index: u32, _at: usize, _bytes: usize, _writable: bool) {}

    pub(crate) fn bind_constant(&mut self, _index: u32, _at: usize, _bytes: usize) {}

    pub(crate) fn reserve(&mut self, _index: u32, _bytes: usize) {}
}

pub(crate) fn simulated_dispatch(_grid: [u32; 3], _group: [u32; 3]) -> Box<SimulatedDispatch> {
    Box::new(SimulatedDispatch)
}

pub(crate) fn simulated_library(_source: &str) -> Result<Box<SimulatedLibrary>> {
    Err(Error::mlx("[simulate] mlx-primitives was built without the simulator"))
}

pub(crate) fn simulated_kernel(
    library: &SimulatedLibrary,
    _name: &str,
    _indices: &[u32],
    _bits: &[u64],
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
