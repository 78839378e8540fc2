//! Keeps the memory of a command's models resident for the GPU, if the system supports that.
//! Without this, macOS pages weights out between tokens if they fill most of the memory.

use std::cell::Cell;

use anyhow::Result;
use mlx_primitives::memory;
use mlx_primitives_llama::{CacheKind, Llama, estimate};

use crate::output;

/// Keeps memory resident until this value is dropped. A command has only one such value at a time.
pub struct Resident {
    /// The bytes of the models and of the arrays in a step.
    models: usize,
    /// MLX's limit before the first change; `None` until then.
    before: Cell<Option<usize>>,
}

impl Resident {
    /// Keeps models with this many bytes in total resident, and the arrays of a step.
    pub fn new(models: usize) -> Self {
        // A step with 512 prompt tokens allocates some hundred megabytes at a time, and more in
        // larger models. This number is an estimate and was not measured.
        let step = (512 << 20) + models / 16;
        let resident = Self { models: models.saturating_add(step), before: Cell::default() };
        resident.with_caches(0);
        resident
    }

    /// Also keeps caches of this many bytes resident. They replace the caches of the last call. If
    /// the system refuses, the command writes a note and continues more slowly.
    pub fn with_caches(&self, bytes: usize) {
        let wire = || -> Result<()> {
            let Some(most) = memory::recommended_working_set()? else { return Ok(()) };
            let last = memory::set_wired_limit(most.min(self.models.saturating_add(bytes)))?;
            self.before.set(self.before.get().or(Some(last)));
            Ok(())
        };
        if let Err(error) = wire() {
            output::eprintln(format_args!(
                "note: the model may be paged out between tokens: {error}"
            ));
        }
    }
}

impl Drop for Resident {
    fn drop(&mut self) {
        // Ignore the result: the system never refuses a lower limit, and `drop` could not report an
        // error.
        let _ = self.before.get().map(memory::set_wired_limit);
    }
}

/// Returns the bytes of the keys and values for this number of positions, but at most for the
/// model's limit.
pub fn cache(llama: &Llama, kind: CacheKind, positions: usize) -> usize {
    let config = llama.config();
    let most = config.max_position_embeddings.map_or(u32::MAX, i32::unsigned_abs);
    let positions = u32::try_from(positions).unwrap_or(u32::MAX).min(most);
    // The size of a buffer is a multiple of 256 positions.
    let positions = positions.checked_next_multiple_of(256).unwrap_or(positions);
    let sizes = estimate(config, llama.dtype(), None, kind, 1, positions);
    sizes.map_or(usize::MAX, |sizes| usize::try_from(sizes.cache).unwrap_or(usize::MAX))
}

#[cfg(test)]
mod tests {
    use anyhow::Result;
    use mlx_primitives::Array;
    use mlx_primitives_llama::Checkpoint;

    use super::*;

    #[test]
    fn bytes_of_a_cache_are_those_of_its_buffers() -> Result<()> {
        let llama = Checkpoint::demo()?.llama;
        for kind in [CacheKind::Plain, CacheKind::Quantized { group_size: 32, bits: 8 }] {
            let mut real = llama.new_cache_of(kind)?;
            let _ = llama.forward(&Array::from_slice(&[1u32, 2, 3], [1, 3])?, &mut real)?;
            // The buffers of plain caches are larger, because they also have room for the queries
            // of a step.
            let (real, asked) = (real.nbytes(), cache(&llama, kind, 3));
            assert!(asked <= real && real <= 2 * asked, "{kind:?}: {asked} of {real}");
        }
        let most = llama.config().max_position_embeddings.unwrap_or_default().unsigned_abs();
        let whole = cache(&llama, CacheKind::Plain, most as usize);
        assert_eq!(cache(&llama, CacheKind::Plain, usize::MAX), whole);
        Ok(())
    }
}
