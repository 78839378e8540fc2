use mlx_primitives::{Dtype, Result};

use super::trainable::{Kind, Trainable};
use super::trainer::Settings;
use crate::model::{LOGITS, Llama};

/// The peak memory of a training run, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrainingEstimate {
    /// The bytes of the model's weights.
    pub weights: u64,
    /// The bytes that stay allocated between steps: the trained arrays, the optimizer's state and
    /// accumulated gradients.
    pub state: u64,
    /// The maximum number of bytes that a step adds: the results of layers that the backward pass
    /// reads, the logits, and the gradients.
    pub step: u64,
}

impl TrainingEstimate {
    /// The sum of the three numbers.
    pub fn total(&self) -> u64 {
        self.weights.saturating_add(self.state).saturating_add(self.step)
    }
}

impl Trainable {
    /// Estimates the peak memory of a training run before it allocates anything. `length` is the
    /// number of columns of its batches, as [`Dataset::columns`](super::Dataset::columns) returns
    /// it. On a CPU, the memory of a run differs from the estimate by at most a fifth.
    ///
    /// # Errors
    ///
    /// Returns an error if this `Trainable` was made for another model.
    ///
    /// ```
    /// use mlx_primitives_llama::Checkpoint;
    /// use mlx_primitives_llama::train::{Adam, Kind, Optimizer, Schedule, Settings, Trainable};
    ///
    /// let llama = Checkpoint::demo()?.llama;
    /// let kind = Kind::Lora { rank: 8, scale: 20.0, keys: None, dropout: 0.0, dora: false };
    /// let mut settings = Settings {
    ///     optimizer: Optimizer::Adam(Adam::default()),
    ///     schedule: Schedule::Constant(1e-5),
    ///     batch_size: 4,
    ///     accumulation: 1,
    ///     max_length: 2048,
    ///     max_norm: None,
    ///     recompute: false,
    ///     seed: 0,
    /// };
    /// let trainable = Trainable::new(&llama, kind, -1)?;
    /// let kept = trainable.estimate(&llama, &settings, 1024)?;
    /// settings.recompute = true;
    /// assert!(trainable.estimate(&llama, &settings, 1024)?.total() < kept.total());
    /// # Ok::<(), mlx_primitives::Error>(())
    /// ```
    pub fn estimate(
        &self,
        llama: &Llama,
        settings: &Settings,
        length: usize,
    ) -> Result<TrainingEstimate> {
        let (config, size) = (llama.config(), llama.dtype().size() as u64);
        let full = self.kind == Kind::Full;
        let arrays = self.shapes(llama)?;
        let bytes = |shape: &[i32]| 4 * shape.iter().map(|&n| extent(n)).product::<u64>();
        let trained: u64 = arrays.values().map(|shape| bytes(shape)).sum();
        let largest = arrays.values().map(|shape| bytes(shape)).max().unwrap_or(0);
        let moments = arrays.values().flat_map(|shape| settings.optimizer.parts(shape));
        let moments: u64 = moments.map(|(_, shape)| bytes(&shape)).sum();
        let sums = if settings.accumulation > 1 { trained } else { 0 };

        let layers = extent(self.layers);
        let tokens =
            (settings.batch_size as u64).saturating_mul(length as u64).saturating_mul(size);
        let (hidden, inner) = (extent(config.hidden_size), extent(config.intermediate_size));
        let features = |heads: i32| extent(heads) * extent(config.head_dim());
        let (q, kv) = (features(config.num_attention_heads), features(config.kv_heads()));
        // The number of features per token that a layer keeps for the backward pass: the input, the
        // results of both norms and the sum after attention (`4 * hidden`), the queries and the
        // result of attention (`2 * q`), keys and values before and after the rotary embedding
        // (`4 * kv`), and gate, up and their product (`3 * inner`).
        let mut kept = 4 * hidden + 2 * q + 4 * kv + 3 * inner;
        if let Kind::Lora { dropout, dora, .. } = self.kind {
            if dora {
                // DoRA also keeps the result of each projection before the multiplication by the
                // row factors.
                kept += 2 * hidden + q + 2 * kv + 2 * inner;
            }
            if dropout > 0.0 {
                // With dropout, each projection keeps the dropout mask and the result of dropout,
                // in place of its input.
                kept += 8 * hidden + 2 * q + inner;
            }
        }
        let kept = tokens.saturating_mul(kept);
        let of_layer = trained / layers.max(1);
        // Training whole layers concatenates the q, k and v weights and, if the model's type is not
        // float32, converts all weights of a layer.
        let joined = if full { (q + 2 * kv) * hidden * size } else { 0 };
        let converted = match llama.dtype() {
            Dtype::Float32 => 0,
            _ if full => of_layer / 4 * size,
            _ => 0,
        };
        let (held, working) = match settings.recompute {
            true => (tokens * hidden, kept.saturating_mul(3)),
            false => (kept + joined + converted, kept.saturating_mul(3) / 2),
        };
        let logits = tokens.saturating_mul(extent(config.vocab_size));
        // If there are more than [`LOGITS`] logits, both passes compute them in chunks. The
        // backward pass also copies an output projection that is not packed.
        let chunk = LOGITS as u64 * size;
        let head = match logits > chunk && llama.plain_head() {
            true => extent(config.vocab_size) * hidden * size,
            false => 0,
        };
        let logits = head + logits.min(chunk) * 9 / 4;
        let backward = working.max(kept.saturating_add(logits)).saturating_add(2 * of_layer);
        let backward = held.saturating_mul(layers).saturating_add(backward);
        // MLX queues about ten results of an update before it waits for the first result.
        let update = 2 * trained + 10 * largest;
        Ok(TrainingEstimate {
            weights: llama.nbytes() as u64,
            state: trained + moments + sums,
            step: backward.max(update),
        })
    }
}

fn extent(value: i32) -> u64 {
    u64::from(value.unsigned_abs())
}
