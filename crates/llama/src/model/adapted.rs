//! A model with low-rank updates that run beside its weights or are added to the weights.

use std::collections::BTreeMap;

use mlx_primitives::ops::Lora;
use mlx_primitives::{Array, Error, Result};

use super::adapters::Adapters;
use super::linear::Module;
use super::llama::Llama;
use super::update::Update;
use crate::base::layer_of;
use crate::cache::Cache;

impl Llama {
    /// The shape `[outputs, inputs]` of the projection `name`.
    ///
    /// # Errors
    ///
    /// Returns an error if the model has no projection `name`.
    ///
    /// ```
    /// use mlx_primitives_llama::Checkpoint;
    ///
    /// let llama = Checkpoint::demo()?.llama;
    /// assert_eq!(llama.projection_shape("model.layers.0.mlp.down_proj")?, [128, 352]);
    /// assert!(llama.projection_shape("model.layers.9.mlp.down_proj").is_err());
    /// # Ok::<(), mlx_primitives::Error>(())
    /// ```
    pub fn projection_shape(&self, name: &str) -> Result<[i32; 2]> {
        // All layers have the same shapes. So for a layer in another process, the function reads
        // the shape from the first layer of this process.
        let all = self.config().num_hidden_layers;
        let own = self.exchange().layers(all);
        let elsewhere = |layer: &i32| (0..all).contains(layer) && !own.contains(layer);
        let here = match layer_of(name).filter(elsewhere) {
            Some(layer) => name.replacen(&format!(".{layer}."), &format!(".{}.", own.start), 1),
            None => name.to_owned(),
        };
        let shape = self.modules().find_map(|module| match module {
            Module::Linear(linear) if linear.path == here && here != self.embed_tokens.path => {
                Some([linear.outputs, linear.inputs])
            }
            _ => None,
        });
        shape.ok_or_else(|| {
            Error::argument("llama", format_args!("one of its projections, got {name}"))
        })
    }

    /// Attaches low-rank updates to the model. Every forward pass runs them beside the weights, in
    /// the type of the activations. The new updates replace the previous updates.
    ///
    /// # Errors
    ///
    /// Returns an error if the model lacks the projection of an update, or if the shape of the
    /// projection does not fit the update.
    pub fn adapted(self, adapters: &Adapters) -> Result<Self> {
        self.with_updates(adapters)
    }

    /// Returns an error if the model lacks this projection, or if the update does not fit it.
    fn require_fit(&self, name: &str, update: &Lora) -> Result<()> {
        let [outputs, inputs] = self.projection_shape(name)?;
        let (a, b) = (update.a().shape(), update.b().shape());
        if a.last() == Some(&inputs) && b.first() == Some(&outputs) {
            return Ok(());
        }
        let of = format_args!("an update of {name} [{outputs}, {inputs}]");
        Err(Error::argument("llama", format_args!("{of}, got a of {a:?} and b of {b:?}")))
    }

    /// Returns a model with the updates attached. The new model shares its weights with `self`.
    pub(crate) fn with_updates(&self, adapters: &Adapters) -> Result<Self> {
        self.exchange().agree("the adapters", &mut || Ok(format!("{:016x}", adapters.sum()?)))?;
        let mut updates = BTreeMap::new();
        for (name, update) in adapters.iter() {
            self.require_fit(name, update)?;
            updates.insert(name.to_owned(), update.astype(self.dtype())?);
        }
        self.beside(Some(&Adapters { updates }))
    }

    /// Runs [`forward`](Self::forward) with these low-rank updates beside the projections that they
    /// name, instead of the updates that [`adapted`](Self::adapted) attached.
    ///
    /// # Errors
    ///
    /// Returns an error if the model lacks the projection of an update, or if the shape of the
    /// projection does not fit the update. Returns the errors of [`forward`](Self::forward) too.
    pub fn forward_adapted(
        &self,
        tokens: &Array,
        cache: &mut Cache,
        adapters: Option<&Adapters>,
    ) -> Result<Array> {
        for (name, update) in adapters.iter().flat_map(|adapters| adapters.iter()) {
            self.require_fit(name, update)?;
        }
        self.beside(adapters)?.forward(tokens, cache)
    }

    /// Returns the model with only the updates of `adapters` attached.
    fn beside(&self, adapters: Option<&Adapters>) -> Result<Self> {
        let mut model = self.map(&mut |linear| {
            let update = adapters.and_then(|adapters| adapters.get(&linear.path));
            let own = update.map(|update| linear.own_part(update)).transpose()?;
            let own = own.map(|own| Update::new(own, &linear.matrix, None));
            linear.update = own.transpose()?;
            Ok(())
        })?;
        model.adapters = adapters.cloned().unwrap_or_default();
        model.weights_sum = self.weights_sum.clone();
        Ok(model)
    }

    /// Returns the model with the updates added to its weights. Packed weights are packed again.
    ///
    /// # Errors
    ///
    /// Returns an error if the model lacks the projection of an update, if the shape of the
    /// projection does not fit the update, or if a packed weight cannot be packed again.
    pub fn merged(&self, adapters: &Adapters) -> Result<Self> {
        for name in adapters.updates.keys() {
            self.projection_shape(name)?;
        }
        let merged = self.map(&mut |linear| {
            if let Some(update) = adapters.get(&linear.path) {
                linear.matrix = linear.own_part(update)?.merge(&linear.matrix)?;
            }
            Ok(())
        });
        merged?.joined()
    }
}
