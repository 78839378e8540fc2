use std::collections::BTreeMap;

use crate::array::Array;
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::hash::Fnv;
use crate::ops::Lora;

use super::cache::Cache;
use super::linear::Linear;
use super::model::Llama;
use super::weights::layer_of;

/// Low-rank updates of a model's projections, by the names of the projections in checkpoints, such
/// as `model.layers.0.self_attn.q_proj`.
///
/// ```
/// use mlx_primitives::llama::{Adapters, Checkpoint};
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
/// [`load`](Self::load) and [`save`](Self::save) read and write mlx-lm's files.
#[derive(Clone, Debug, Default)]
pub struct Adapters {
    updates: BTreeMap<String, Lora>,
}

impl Adapters {
    /// The update of the projection of that name.
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

    /// A hash of the updates.
    fn identity(&self) -> Result<String> {
        let mut hash = Fnv::default();
        for (name, update) in self.iter() {
            hash.add(format!("{name} {}", update.scale()).as_bytes());
            for half in [update.a(), update.b()] {
                let numbers = half.astype(Dtype::Float32)?.to_vec::<f32>()?;
                numbers.iter().for_each(|number| hash.add(&number.to_bits().to_le_bytes()));
            }
        }
        Ok(format!("{:016x}", hash.0))
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

impl Llama {
    /// The shape `[outputs, inputs]` of the projection of that name.
    ///
    /// # Errors
    ///
    /// Returns an error if the model has no projection of that name.
    ///
    /// ```
    /// use mlx_primitives::llama::Checkpoint;
    ///
    /// let llama = Checkpoint::demo()?.llama;
    /// assert_eq!(llama.projection_shape("model.layers.0.mlp.down_proj")?, [128, 352]);
    /// assert!(llama.projection_shape("model.layers.9.mlp.down_proj").is_err());
    /// # Ok::<(), mlx_primitives::Error>(())
    /// ```
    pub fn projection_shape(&self, name: &str) -> Result<[i32; 2]> {
        // A layer that another rank holds has the shapes of this rank's layers.
        let all = self.config().num_hidden_layers;
        let own = self.parts.layers(all);
        let elsewhere = |layer: &i32| (0..all).contains(layer) && !own.contains(layer);
        let here = match layer_of(name).filter(elsewhere) {
            Some(layer) => name.replacen(&format!(".{layer}."), &format!(".{}.", own.start), 1),
            None => name.to_owned(),
        };
        match self.projections().find(|projection| projection.path == here) {
            Some(projection) => Ok(projection.whole_shape()),
            None => {
                Err(Error::argument("llama", format_args!("one of its projections, got {name}")))
            }
        }
    }

    /// Attaches the updates to the model, which runs them beside its weights in every step, in the
    /// type of its activations. They replace previous ones.
    ///
    /// # Errors
    ///
    /// Returns an error if an update names no projection, or is of another shape.
    pub fn adapted(self, adapters: &Adapters) -> Result<Self> {
        self.parts.agree("the adapters", || adapters.identity())?;
        let mut updates = BTreeMap::new();
        for (name, update) in adapters.iter() {
            let [outputs, inputs] = self.projection_shape(name)?;
            let (a, b) = (update.a().shape(), update.b().shape());
            if a.last() != Some(&inputs) || b.first() != Some(&outputs) {
                return Err(Error::argument(
                    "llama",
                    format_args!(
                        "an update of {name} [{outputs}, {inputs}], got a of {a:?} and b of {b:?}"
                    ),
                ));
            }
            updates.insert(name.to_owned(), update.astype(self.dtype())?);
        }
        self.beside(Some(&Adapters { updates }))
    }

    /// Runs [`forward`](Self::forward) with these low-rank updates beside the projections that they
    /// name, instead of those that [`adapted`](Self::adapted) attached.
    ///
    /// # Errors
    ///
    /// Returns an error if an update names no projection, or for what [`forward`](Self::forward)
    /// refuses.
    pub fn forward_adapted(
        &self,
        tokens: &Array,
        cache: &mut Cache,
        adapters: Option<&Adapters>,
    ) -> Result<Array> {
        self.beside(adapters)?.forward(tokens, cache)
    }

    /// The model with only these updates beside its weights.
    fn beside(&self, adapters: Option<&Adapters>) -> Result<Self> {
        self.with_updates(&|projection: &Linear| {
            let update = adapters.and_then(|adapters| adapters.get(&projection.path));
            let update = update.map(|update| projection.own_part(update)).transpose()?;
            Ok(Linear { update, ..projection.clone() })
        })
    }

    /// The model with the updates added to its weights. Packed weights are packed again.
    ///
    /// # Errors
    ///
    /// Returns an error if an update names no projection or is of another shape, or if a packed
    /// weight cannot be packed again.
    pub fn merged(&self, adapters: &Adapters) -> Result<Self> {
        for name in adapters.updates.keys() {
            self.projection_shape(name)?;
        }
        self.with_projections(&|projection: &Linear| match adapters.get(&projection.path) {
            Some(update) => {
                let matrix = projection.own_part(update)?.merge(&projection.matrix)?;
                Ok(Linear { matrix, ..projection.clone() })
            }
            None => Ok(projection.clone()),
        })
    }
}
