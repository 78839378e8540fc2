use std::collections::{BTreeMap, BTreeSet};

use mlx_primitives::ops::{LinearWeight, Lora};
use mlx_primitives::support::Fnv;
use mlx_primitives::{Array, Dtype, Error, Result, eval, random};

use super::optimizer::Parameters;
use crate::base::layer_of;
use crate::model::{Adapters, Llama, Trained};

/// The parts of a model that can be trained.
#[derive(Clone, Debug, PartialEq)]
pub enum Kind {
    /// Low-rank updates beside the weights. The weights may be packed.
    Lora {
        /// The rank of each update, at least 1.
        rank: i32,
        /// The factor that multiplies each update.
        scale: f32,
        /// The paths of the updated projections within a layer, such as `self_attn.q_proj`, or the
        /// path `lm_head`. With `None`, all projections of the layers are updated.
        keys: Option<Vec<String>>,
        /// The fraction of each update's inputs that a step sets to zero, at least 0 and below 1.
        dropout: f32,
        /// Whether the norms of the updated rows are trained too (DoRA).
        dora: bool,
    },
    /// All weights of the layers. The weights must not be packed.
    Full,
}

/// The trained part of a model.
#[derive(Clone, Debug)]
pub struct Trainable {
    pub(super) kind: Kind,
    /// The number of trained layers. These are the last layers of the model.
    pub(super) layers: i32,
    /// The paths of the projections with updates, or the names of the trained weights.
    names: Vec<String>,
}

impl Trainable {
    /// Chooses the trained part in the last `layers` layers of a model, or in all layers if
    /// `layers` is 0 or less.
    ///
    /// # Errors
    ///
    /// Returns an error for more layers than the model has, and for a key that matches no
    /// projection. The rank must be at least 1 and at most the number of rows and of columns of
    /// each projection. The scale must be finite, and the dropout at least 0 and below 1. With
    /// [`Kind::Full`], packed weights are an error.
    pub fn new(llama: &Llama, kind: Kind, layers: i32) -> Result<Self> {
        let refuse = |expected: std::fmt::Arguments| Err(Error::argument("training", expected));
        let all = llama.config().num_hidden_layers;
        if layers > all {
            return refuse(format_args!("at most {all} layers, got {layers}"));
        }
        let layers = if layers <= 0 { all } else { layers };
        let trained = |name: &str| layer_of(name).is_some_and(|layer| layer >= all - layers);
        let weights = llama.weights();
        let mut names: Vec<String> = Vec::new();
        match &kind {
            Kind::Full => {
                for (name, weight) in weights.iter().filter(|(name, _)| trained(name)) {
                    if matches!(weight, LinearWeight::Quantized(_)) {
                        return refuse(format_args!(
                            "float weights to train whole, got a packed {name}: train low-rank updates"
                        ));
                    }
                    names.push(name.clone());
                }
            }
            Kind::Lora { rank, scale, keys, dropout, .. } => {
                let mut found = BTreeSet::new();
                let paths = weights.keys().filter_map(|name| name.strip_suffix(".weight"));
                for path in paths {
                    let Ok(shape) = llama.projection_shape(path) else { continue };
                    let key = match path.strip_prefix("model.layers.") {
                        Some(_) if !trained(path) => continue,
                        Some(rest) => rest.split_once('.').map_or(rest, |(_, key)| key),
                        None => path,
                    };
                    let in_layer = key != path;
                    if keys.as_ref().map_or(in_layer, |keys| keys.iter().any(|it| it == key)) {
                        let most = shape[0].min(shape[1]);
                        if !(1..=most).contains(rank) {
                            return refuse(format_args!("a rank of 1 to {most}, got {rank}"));
                        }
                        found.insert(key);
                        names.push(path.to_owned());
                    }
                }
                if !scale.is_finite() {
                    return refuse(format_args!("a finite scale, got {scale}"));
                }
                if !(0.0..1.0).contains(dropout) {
                    return refuse(format_args!("a dropout of 0 to below 1, got {dropout}"));
                }
                let unknown = |key: &&String| !found.contains(key.as_str());
                if let Some(key) = keys.iter().flatten().find(unknown) {
                    return refuse(format_args!(
                        "keys of projections of the model, got {key:.120}"
                    ));
                }
            }
        }
        if names.is_empty() {
            return refuse(format_args!("something to train, got no projection"));
        }
        Ok(Self { kind, layers, names })
    }

    /// The shapes of the trained arrays by their names.
    pub(super) fn shapes(&self, llama: &Llama) -> Result<BTreeMap<String, Vec<i32>>> {
        let mut shapes = BTreeMap::new();
        let weights = llama.weights();
        for name in &self.names {
            match self.kind {
                Kind::Lora { rank, dora, .. } => {
                    let [outputs, inputs] = llama.projection_shape(name)?;
                    shapes.insert(format!("{name}.lora_a"), vec![rank, inputs]);
                    shapes.insert(format!("{name}.lora_b"), vec![outputs, rank]);
                    shapes.extend(dora.then(|| (format!("{name}.m"), vec![outputs])));
                }
                Kind::Full => {
                    let arrays = weights.get(name).into_iter().flat_map(LinearWeight::arrays);
                    shapes.extend(arrays.map(|array| (name.clone(), array.shape().to_vec())));
                }
            }
        }
        Ok(shapes)
    }

    /// Makes the float32 parameters before the first update. Low-rank updates are drawn at random
    /// with the seed, and do not change the model's results yet. For whole layers, the parameters
    /// are the model's weights.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no memory for the parameters.
    pub fn initial(&self, llama: &Llama, seed: u64) -> Result<Parameters> {
        let mut parameters = Parameters::new();
        match self.kind {
            Kind::Lora { rank, scale, dora, .. } => {
                random::seed(seed)?;
                let weights = llama.weights();
                for name in &self.names {
                    let update = Lora::initial(llama.projection_shape(name)?, rank, scale)?;
                    parameters.insert(format!("{name}.lora_a"), update.a().clone());
                    parameters.insert(format!("{name}.lora_b"), update.b().clone());
                    if let Some(weight) = weights.get(&format!("{name}.weight")).filter(|_| dora) {
                        let norms = weight.row_squares()?.sqrt()?;
                        parameters.insert(format!("{name}.m"), norms);
                    }
                }
            }
            Kind::Full => {
                let mut weights = llama.weights();
                for name in &self.names {
                    if let Some(LinearWeight::Plain(weight)) = weights.remove(name) {
                        let weight = weight.astype(Dtype::Float32)?.contiguous()?;
                        parameters.insert(name.clone(), weight);
                    }
                }
            }
        }
        eval(parameters.values())?;
        Ok(parameters)
    }

    /// Returns the model with these parameters. They are converted to the types of the model,
    /// except DoRA's norms of the rows.
    ///
    /// # Errors
    ///
    /// Returns an error if the parameters belong to another model.
    pub fn model(&self, llama: &Llama, parameters: &Parameters) -> Result<Llama> {
        llama.trained(&self.trained(parameters))
    }

    /// Returns the low-rank updates in these parameters. The result is empty if whole layers are
    /// trained.
    ///
    /// # Errors
    ///
    /// Returns an error if the parameters of an update are not matrices of the same rank.
    pub fn adapters(&self, parameters: &Parameters) -> Result<Adapters> {
        let half = |name: &str, half: &str| parameters.get(&format!("{name}.{half}")).cloned();
        let update = |name: &String| {
            let (a, b) = half(name, "lora_a").zip(half(name, "lora_b"))?;
            let mut update = Lora::new(a, b, self.scale());
            if let Some(magnitude) = half(name, "m") {
                update = update.and_then(|update| update.with_magnitude(magnitude));
            }
            Some(update.map(|update| (name.clone(), update)))
        };
        self.names.iter().filter_map(update).collect()
    }

    fn scale(&self) -> f32 {
        match self.kind {
            Kind::Lora { scale, .. } => scale,
            Kind::Full => 1.0,
        }
    }

    /// Makes the arguments of a model's forward pass in training.
    fn trained(&self, parameters: &Parameters) -> Trained {
        Trained { arrays: parameters.clone(), scale: self.scale(), ..Trained::default() }
    }

    /// Returns the sum of the losses of a batch's targets. `step` contains the seed and the number
    /// of the step. They determine the inputs that dropout sets to zero.
    pub(super) fn loss(
        &self,
        llama: &Llama,
        parameters: &Parameters,
        squares: &Parameters,
        batch: [&Array; 2],
        recompute: bool,
        step: [u64; 2],
    ) -> Result<Array> {
        let mut trained = Trained { squares: squares.clone(), ..self.trained(parameters) };
        if let Kind::Lora { dropout, .. } = self.kind
            && dropout > 0.0
        {
            let mut hash = Fnv::default();
            hash.add(format!("{step:?}").as_bytes());
            trained.dropout = Some((dropout, hash.0));
        }
        let losses = llama.losses(&trained, batch, recompute)?;
        losses.astype(Dtype::Float32)?.sum(..)
    }
}
