//! Command-line options of the key/value cache.

use mlx_primitives_llama::CacheKind;

use crate::model::{kv_bits, kv_group_size};

#[derive(clap::Args)]
#[command(next_help_heading = "Speed and memory")]
pub struct CacheArgs {
    /// Keep keys and values of only this number of positions: the first four and the latest.
    #[arg(long, value_name = "N", conflicts_with_all = ["kv_bits", "draft_model", "prompt_lookup"])]
    max_kv_size: Option<i32>,
    /// Keep keys and values in this many bits (2, 3, 4, 5, 6 or 8).
    #[arg(long, value_name = "BITS", value_parser = kv_bits(), hide_possible_values = true, allow_negative_numbers = true)]
    kv_bits: Option<i32>,
    /// Numbers that share a scale with --kv-bits: 32, 64 or 128.
    #[arg(long, value_name = "N", default_value = "64", value_parser = kv_group_size(), hide_possible_values = true, allow_negative_numbers = true)]
    kv_group_size: i32,
    /// Prompt tokens run at a time: fewer take less memory.
    #[arg(long, value_name = "N", default_value_t = 512)]
    pub prefill_step_size: usize,
}

/// The number of positions at the start of a text that a rotating cache never replaces. A cache
/// with room for fewer positions keeps fewer. mlx-lm uses the same number.
const KEPT: i32 = 4;

impl CacheArgs {
    /// Returns the format in which the cache stores keys and values.
    pub fn kind(&self) -> CacheKind {
        match (self.max_kv_size, self.kv_bits) {
            (Some(max_size), _) => {
                CacheKind::Rotating { max_size, keep: KEPT.min(max_size - 1).max(0) }
            }
            (None, Some(bits)) => CacheKind::Quantized { group_size: self.kv_group_size, bits },
            (None, None) => CacheKind::Plain,
        }
    }
}
