use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mlx_primitives::io::stored::Stored;
use mlx_primitives::ops::LinearWeight;
use mlx_primitives::support::Fnv;
use mlx_primitives::{Array, Dtype, Error, Result, eval};

use super::config::{Config, Quantization};
use super::exchange::{Exchange, Share};

/// The progress of loading a model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// The bytes of weights that were read so far.
    pub done: u64,
    /// The bytes of all weights.
    pub total: u64,
}

/// The types of floats that a model can have.
const FLOATS: [Dtype; 3] = [Dtype::Float32, Dtype::Float16, Dtype::Bfloat16];

/// A generator of tensors, for a model without files.
pub(crate) trait WeightSource {
    /// Makes the tensor with this name and shape.
    fn tensor(&mut self, name: &str, shape: &[i32]) -> Result<Array>;

    /// Makes the selected rows of a matrix `[outputs, inputs]`. Quantizes them to the given format
    /// if the groups of the format divide a row.
    fn matrix(
        &mut self,
        shape: [i32; 2],
        rows: Range<i32>,
        quantized: Option<Quantization>,
    ) -> Result<LinearWeight>;
}

/// The tensors of a checkpoint. The model takes them out one by one while it is built.
#[derive(Default)]
pub struct Weights {
    arrays: HashMap<String, Array>,
    /// The file of each tensor, for error messages.
    files: HashMap<String, Arc<Path>>,
    /// The path of the checkpoint, for errors about missing tensors.
    place: Option<PathBuf>,
    /// The generator of all tensors, for a model without files.
    source: Option<Box<dyn WeightSource>>,
    /// The part of the model to load: some rows of each matrix, and some layers.
    share: Share,
    /// The type to which the model's floats are converted.
    dtype: Option<Dtype>,
    /// The names of the biases of packed weights that the scales determine.
    centered: Vec<String>,
}

impl Weights {
    /// Creates weights from named tensors.
    pub fn new(arrays: HashMap<String, Array>) -> Self {
        Self { arrays, ..Self::default() }
    }

    /// Creates an empty set of tensors for the checkpoint at `place`.
    pub(crate) fn of(place: &Path) -> Self {
        Self { place: Some(place.to_owned()), ..Self::default() }
    }

    /// Adds the tensors of a file. Returns an error if another file has a tensor with the same
    /// name.
    pub(crate) fn add(&mut self, file: &Path, arrays: HashMap<String, Array>) -> Result<()> {
        let file: Arc<Path> = file.into();
        for (name, array) in arrays {
            if let Some(other) = self.files.insert(name.clone(), file.clone()) {
                let expected = format_args!("each tensor in one file, got {name}");
                let other = other.display();
                return Err(Error::file(&file, format_args!("{expected} in {other} too")));
            }
            self.arrays.insert(name, array);
        }
        Ok(())
    }

    /// States that the scales determine the biases with these names, as
    /// [`with_centered_codes`](mlx_primitives::ops::QuantizedWeight::with_centered_codes) says.
    pub(crate) fn with_centered(self, centered: Vec<String>) -> Self {
        Self { centered, ..self }
    }

    /// Whether the scales determine the biases of this name.
    pub(crate) fn is_centered(&self, biases: &str) -> bool {
        self.centered.iter().any(|name| name == biases)
    }

    /// Limits the weights to the part of the model that this process holds, as `exchange` says.
    pub fn held_by(self, exchange: impl Exchange + 'static) -> Self {
        Self { share: Share::new(exchange), ..self }
    }

    /// Converts all floats to `dtype` when the model takes them: norms, biases, plain matrices, and
    /// the scales and biases of packed weights in MLX's affine layout. The activations of the model
    /// have this type too. The integers of packed weights stay as they are, and so do the scales of
    /// the other layouts, which are bytes. Models with random weights are not converted.
    ///
    /// A GGUF file usually has norms of float32, so its activations are float32. A conversion to
    /// bfloat16 rounds its scales and plain weights to eight significant bits. A conversion to
    /// float16 keeps plain weights of float16 and the scales of Q4_0, Q4_1, Q5_0, Q5_1 and Q8_0.
    ///
    /// ```
    /// use mlx_primitives::Dtype;
    /// use mlx_primitives_llama::Llama;
    ///
    /// let demo = concat!(env!("CARGO_MANIFEST_DIR"), "/assets/demo");
    /// let to = |_: &_, weights: mlx_primitives_llama::base::Weights| {
    ///     weights.converted_to(Dtype::Bfloat16)
    /// };
    /// let llama = Llama::load_part(demo, to, |_| {})?;
    /// assert_eq!(llama.dtype(), Dtype::Bfloat16);
    /// # Ok::<(), mlx_primitives::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns an error unless `dtype` is float32, float16 or bfloat16.
    pub fn converted_to(self, dtype: Dtype) -> Result<Self> {
        if !FLOATS.contains(&dtype) {
            let expected = format_args!("float32, float16 or bfloat16, got {dtype}");
            return Err(Error::argument("dtype", expected));
        }
        Ok(Self { dtype: Some(dtype), ..self })
    }

    /// The part of the model that this process holds.
    pub(crate) fn share(&self) -> &Share {
        &self.share
    }

    /// Drops the tensors of layers that other processes hold. The model has `all` layers.
    pub(crate) fn keep_own_layers(&mut self, all: i32) {
        let own = self.share.layers(all);
        self.arrays.retain(|name, _| match layer_of(name) {
            Some(layer) => own.contains(&layer) || !(0..all).contains(&layer),
            None => true,
        });
    }

    /// The total size in bytes of the tensors that were not taken yet.
    pub(crate) fn nbytes(&self) -> u64 {
        self.arrays.values().map(|array| array.nbytes() as u64).sum()
    }

    /// A string that identifies the model: its type, and a hash of its configuration, of the type
    /// that its floats get, and of the names, shapes, types and first rows of its tensors.
    pub(crate) fn identity(&self, config: &Config) -> Result<String> {
        let mut hash = Fnv::default();
        hash.add(format!("{config:?} {:?}", self.dtype).as_bytes());
        let sorted: BTreeMap<_, _> = self.arrays.iter().collect();
        let mut rows = Vec::new();
        for (name, array) in sorted {
            hash.add(format!("{name} {:?} {}", array.shape(), array.dtype()).as_bytes());
            if array.size() > 0 && array.ndim() > 0 {
                rows.push(Stored::part(array, 0, &(0..1))?.astype(Dtype::Float32)?);
            }
        }
        eval(&rows)?;
        for row in rows {
            row.to_vec::<f32>()?
                .iter()
                .for_each(|number| hash.add(&number.to_bits().to_le_bytes()));
        }
        Ok(format!("{} {:016x}", config.model_type, hash.0))
    }

    /// The type to which the model's floats are converted, if any.
    pub(crate) fn dtype(&self) -> Option<Dtype> {
        self.dtype.filter(|_| self.source.is_none())
    }

    pub(crate) fn contains(&self, name: &str) -> bool {
        self.arrays.contains_key(name)
    }

    pub(crate) fn shape(&self, name: &str) -> Option<(&[i32], Dtype)> {
        self.arrays.get(name).map(|array| (array.shape(), array.dtype()))
    }

    /// Makes an error about the tensor `name` that names the tensor's file.
    pub(crate) fn error(&self, name: &str, expected: impl std::fmt::Display) -> Error {
        let error = Error::argument("weights", expected);
        match self.files.get(name).map(|file| &**file).or(self.place.as_deref()) {
            Some(file) => Error::file(file, error),
            None => error,
        }
    }

    /// Creates weights that `source` generates.
    pub(crate) fn made_by(source: impl WeightSource + 'static) -> Self {
        Self { source: Some(Box::new(source)), ..Self::default() }
    }

    /// The generator of the tensors, for a model without files.
    pub(crate) fn source(&mut self) -> Option<&mut (dyn WeightSource + 'static)> {
        self.source.as_deref_mut()
    }

    /// Takes out the tensor `name`. It must have the shape `shape` and the type float32, float16 or
    /// bfloat16.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no such tensor, or if it has another shape or type.
    pub fn take(&mut self, name: &str, shape: &[i32]) -> Result<Array> {
        self.take_rows(name, shape, &(0..shape.first().copied().unwrap_or(1)))
    }

    /// Takes out a tensor like [`take`](Self::take), or returns `None` if there is no such tensor.
    ///
    /// # Errors
    ///
    /// Returns an error if the tensor has another shape or type.
    pub fn take_optional(&mut self, name: &str, shape: &[i32]) -> Result<Option<Array>> {
        match self.source.is_some() || self.contains(name) {
            true => self.take(name, shape).map(Some),
            false => Ok(None),
        }
    }

    /// Takes out the vector `name`, which has one element for each output of the module at `path`.
    /// Returns the elements that belong to this process.
    pub(crate) fn take_part(&mut self, name: &str, path: &str, outputs: i32) -> Result<Array> {
        let rows = self.share.rows(path, outputs);
        self.take_rows(name, &[outputs], &rows)
    }

    /// Takes out a tensor like [`take`](Self::take), but returns only the rows `rows`.
    pub(crate) fn take_rows(
        &mut self,
        name: &str,
        shape: &[i32],
        rows: &Range<i32>,
    ) -> Result<Array> {
        if let Some(source) = &mut self.source {
            let made = source.tensor(name, shape)?;
            return self.converted_rows(&made, rows);
        }
        let Some(array) = self.arrays.remove(name) else {
            let expected = format_args!("a tensor {name} of shape {shape:?}, got none");
            return Err(self.error(name, expected));
        };
        if array.shape() != shape || !FLOATS.contains(&array.dtype()) {
            let got = format_args!("got {:?} of {}", array.shape(), array.dtype());
            let types = "float32, float16 or bfloat16";
            let expected = format_args!("{name} of shape {shape:?} and type {types}, {got}");
            return Err(self.error(name, expected));
        }
        self.converted_rows(&array, rows)
    }

    /// Returns the rows `rows` of an array. If the array has not been read from its file yet, only
    /// these rows are read. Floats are converted to the type of the model, if there is one.
    pub(crate) fn converted_rows(&self, array: &Array, rows: &Range<i32>) -> Result<Array> {
        let part = match array.shape().first().is_none_or(|all| *rows == (0..*all)) {
            true => array.clone(),
            false => Stored::part(array, 0, rows)?,
        };
        match self.dtype().filter(|_| FLOATS.contains(&part.dtype())) {
            Some(dtype) => part.astype(dtype),
            None => Ok(part),
        }
    }

    /// Takes out the tensor `name`, of any shape and type.
    pub(crate) fn take_any(&mut self, name: &str) -> Option<Array> {
        self.arrays.remove(name)
    }

    /// Checks that every tensor was taken. It ignores tables that models compute themselves, and a
    /// copy of the embedding if the embedding is also the output projection (`tied`).
    ///
    /// # Errors
    ///
    /// Returns an error that names a tensor that the model did not use.
    pub fn finish(mut self, tied: bool) -> Result<()> {
        // Old checkpoints contain tables that models compute themselves, and store a tied embedding
        // twice.
        self.arrays.retain(|name, _| {
            let stored_twice = tied && name == "lm_head.weight";
            !stored_twice && !name.ends_with("rotary_emb.inv_freq")
        });
        match self.arrays.keys().min() {
            None => Ok(()),
            Some(name) => {
                let unused = self.arrays.len();
                let expected = format_args!(
                    "only tensors that the config asks for, got {name} ({unused} unused)"
                );
                Err(self.error(name, expected))
            }
        }
    }
}

/// The index of the layer that the tensor or projection `name` belongs to.
pub(crate) fn layer_of(name: &str) -> Option<i32> {
    name.strip_prefix("model.layers.")?.split_once('.')?.0.parse().ok()
}
