//! Memory use does not grow while a model decodes.

use std::cell::RefCell;

use mlx_primitives::Array;
use mlx_primitives_llama::{CacheKind, Checkpoint};

use crate::support::Checked;
use crate::support::memory::stays_flat;

#[test(simulated = once)]
fn of_decoding() -> Checked {
    let llama = Checkpoint::demo()?.llama;
    let token = Array::from_slice(&[7u32], [1, 1])?;
    let rotating = CacheKind::Rotating { max_size: 32, keep: 4 };
    let cache = RefCell::new(llama.new_cache_of(rotating)?);
    stays_flat("of_decoding", 200, |_| {
        // After the first rounds the cache is full, and each step replaces a position.
        for _ in 0..8 {
            llama.forward(&token, &mut cache.borrow_mut())?.eval()?;
        }
        Ok(())
    })
}
