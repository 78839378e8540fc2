//! Threads that wait for arrays share in the work of the kernels.

use std::cell::Cell;

use cxx::CxxVector;

use crate::cpu;
use crate::ffi::bridge;

/// Lends this thread to the kernels until the arrays are computed. Asking whether they are may
/// return an error of the evaluation.
pub(in crate::ffi) fn lend_thread(
    arrays: &CxxVector<bridge::MlxArray>,
) -> Result<(), cxx::Exception> {
    let error = Cell::new(None);
    cpu::lend_thread(&|| {
        arrays.iter().all(|array| {
            bridge::finished(array).unwrap_or_else(|e| {
                error.set(Some(e));
                true
            })
        })
    });
    error.take().map_or(Ok(()), Err)
}

pub(in crate::ffi) fn lend_thread_until(signal: &bridge::Signal) {
    cpu::lend_thread(&|| bridge::is_set(signal));
}
