//! Keeps the memory of a command's models resident for the GPU, where the system offers that.
//! Otherwise macOS pages weights out between tokens once they take most of the memory.

use mlx_primitives::memory::{self, Wired};
use mlx_primitives_llama::{CacheKind, Llama, estimate};

use crate::output;

/// Memory that is given back when this is dropped.
#[derive(Default)]
pub struct Resident(#[allow(dead_code)] Option<Wired<'static>>);

impl Resident {
    /// Up to this many bytes. Where the system refuses them, the command says so and goes on,
    /// slower.
    pub fn new(bytes: usize) -> Self {
        match memory::wire(bytes) {
            Ok(wired) => Self(Some(wired)),
            Err(error) => {
                output::eprintln(format_args!(
                    "note: the model may be paged out between tokens: {error}"
                ));
                Self(None)
            }
        }
    }

    /// These bytes, and those of what a step of the model computes.
    pub fn with_slack(bytes: usize) -> Self {
        Self::new(bytes.saturating_add(slack(bytes)))
    }
}

/// A prompt's step of 512 tokens computes some hundred megabytes at a time, more for larger models.
/// Chosen, not measured.
fn slack(bytes: usize) -> usize {
    (512 << 20) + bytes / 16
}

/// The bytes of keys and values of this many positions, or of as many as the model takes.
pub fn cache(llama: &Llama, kind: CacheKind, positions: usize) -> usize {
    let config = llama.config();
    let most = config.max_position_embeddings.map_or(u32::MAX, i32::unsigned_abs);
    let positions = u32::try_from(positions).unwrap_or(u32::MAX).min(most);
    // Buffers have room for a multiple of 256 positions.
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
            // The buffers of plain caches have room for the queries of a step too.
            let (real, asked) = (real.nbytes(), cache(&llama, kind, 3));
            assert!(asked <= real && real <= 2 * asked, "{kind:?}: {asked} of {real}");
        }
        let most = llama.config().max_position_embeddings.unwrap_or_default().unsigned_abs();
        let whole = cache(&llama, CacheKind::Plain, most as usize);
        assert_eq!(cache(&llama, CacheKind::Plain, usize::MAX), whole);
        Ok(())
    }
}
