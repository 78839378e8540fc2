use std::collections::BTreeMap;

use mlx_primitives::ops::Lora;

/// Low-rank updates of a model's projections, by the names of the projections in checkpoints, such
/// as `model.layers.0.self_attn.q_proj`.
///
/// ```
/// use mlx_primitives_llama::{Adapters, Checkpoint};
/// use mlx_primitives::ops::Lora;
///
/// let llama = Checkpoint::demo()?.llama;
/// let name = "model.layers.0.self_attn.q_proj".to_owned();
/// let update = Lora::initial(llama.projection_shape(&name)?, 4, 2.0)?;
/// let adapters: Adapters = [(name, update)].into_iter().collect();
/// assert_eq!(llama.merged(&adapters)?.nbytes(), llama.nbytes());
/// # Ok::<(), mlx_primitives::Error>(())
/// ```
///
/// [`load`](Self::load) reads files of mlx-lm or PEFT, and [`save`](Self::save) writes mlx-lm's.
#[derive(Clone, Debug, Default)]
pub struct Adapters {
    pub(crate) updates: BTreeMap<String, Lora>,
}

impl Adapters {
    /// The update of the projection `name`.
    pub fn get(&self, name: &str) -> Option<&Lora> {
        self.updates.get(name)
    }

    /// The names of the projections and their updates, in the order of the names.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Lora)> {
        self.updates.iter().map(|(name, update)| (name.as_str(), update))
    }

    /// The number of projections with an update.
    pub fn len(&self) -> usize {
        self.updates.len()
    }

    /// Whether no projection has an update.
    pub fn is_empty(&self) -> bool {
        self.updates.is_empty()
    }
}

impl FromIterator<(String, Lora)> for Adapters {
    fn from_iter<I: IntoIterator<Item = (String, Lora)>>(updates: I) -> Self {
        Self { updates: updates.into_iter().collect() }
    }
}
