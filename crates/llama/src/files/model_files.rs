use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use mlx_primitives::io::KQuants;
use mlx_primitives::ops::{LinearWeight, Lora, QuantizedWeight};
use mlx_primitives::support::files;
use mlx_primitives::{Array, Dtype, Error, Result, builtin, eval, io};

use super::adapter_files::{ADAPTERS, whole_weights};
use super::gguf;
use super::load::safetensors_files;
use super::model_path;
use crate::base::{Config, Quantization, Weights, parse_object};
use crate::model::{Adapters, Llama};

/// An open checkpoint that can be written in another form: quantized, or with adapters fused.
///
/// Tensors are read and converted one by one, so quantizing never keeps the whole float model in
/// memory.
///
/// ```no_run
/// use mlx_primitives_llama::{Checkpoint, ModelFiles, Quantization};
///
/// let files = ModelFiles::open("Llama-3.2-1B")?;
/// files.quantized(Quantization::affine(64, 4), None, |_, _| {})?.save("Llama-3.2-1B-4bit")?;
/// let checkpoint = Checkpoint::load("Llama-3.2-1B-4bit")?;
/// # Ok::<(), mlx_primitives::Error>(())
/// ```
pub struct ModelFiles {
    pub(crate) directory: PathBuf,
    pub(crate) config: Map<String, Value>,
    pub(crate) tensors: BTreeMap<String, Array>,
    /// The contents of the files beside the weights, such as `tokenizer.json`, by file name; `None`
    /// if `save` copies the files from the directory.
    pub(crate) companions: Option<BTreeMap<String, String>>,
}

impl ModelFiles {
    /// Opens `config.json` and `model*.safetensors`, or a `.gguf` file, and checks that they
    /// describe a model. Only the headers of the files are read.
    ///
    /// # Errors
    ///
    /// Returns an error if a file is missing or damaged, or if the tensors do not form a model that
    /// this crate runs. The error names the file.
    pub fn open(directory: impl AsRef<Path>) -> Result<Self> {
        let directory = directory.as_ref().to_owned();
        model_path::check(&directory)?;
        if gguf::is_gguf(&directory) {
            return Self::open_gguf(directory);
        }
        let path = directory.join("config.json");
        let text = files::read_to_string(&path)?;
        let config = parse_object(&text).map_err(|e| Error::file(&path, e))?;
        let mut tensors = BTreeMap::new();
        for file in safetensors_files(&directory)? {
            tensors.extend(io::load_safetensors(file)?.arrays);
        }
        let mut files = Self { directory, config, tensors, companions: None };
        // Tensors that a model does not use are removed, such as precomputed tables and a copy of
        // the embedding.
        let tied = files.llama()?.config().tie_word_embeddings == Some(true);
        // The key is always written, since programs have different defaults for a missing key.
        files.config.entry("tie_word_embeddings").or_insert(Value::Bool(tied));
        files.tensors.retain(|name, _| {
            let stored_twice = tied && name == "lm_head.weight";
            !stored_twice && !name.ends_with("rotary_emb.inv_freq")
        });
        Ok(files)
    }

    /// Opens a GGUF file, and reads or makes the contents of the files beside the weights.
    fn open_gguf(path: PathBuf) -> Result<Self> {
        // K-quants are converted to MLX's affine layout, since a checkpoint can only have MLX's
        // layouts.
        let gguf::Model { config, files, .. } = gguf::read(&path, KQuants::Affine)?;
        let companions = Some(gguf::companions(&path)?);
        let tensors = files.into_iter().flat_map(|(_, arrays)| arrays).collect();
        let files = Self { directory: path, config, tensors, companions };
        files.llama()?;
        Ok(files)
    }

    /// Makes a model from the current tensors.
    ///
    /// # Errors
    ///
    /// Returns an error if the current tensors do not form a model that this crate runs.
    pub fn llama(&self) -> Result<Llama> {
        let arrays: HashMap<String, Array> =
            self.tensors.iter().map(|(name, array)| (name.clone(), array.clone())).collect();
        Llama::new(self.parsed()?, Weights::new(arrays))
            .map_err(|e| Error::file(&self.directory, e))
    }

    /// The directory of the checkpoint, or its GGUF file.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The size of all tensors in bytes.
    pub fn nbytes(&self) -> u64 {
        self.tensors.values().map(|array| array.nbytes() as u64).sum()
    }

    /// The type of the weights that the configuration states. mlx-lm converts the weights to this
    /// type.
    pub fn dtype(&self) -> Option<Dtype> {
        let name = self.config.get("torch_dtype").or_else(|| self.config.get("dtype"))?.as_str()?;
        let known = [Dtype::Float32, Dtype::Float16, Dtype::Bfloat16];
        known.into_iter().find(|dtype| dtype.name() == name)
    }

    /// The paths of matrices that the configuration lists as unquantized, because the length of
    /// their rows is not a multiple of the group size.
    pub fn unquantized(&self) -> Vec<&str> {
        let quantization = self.config.get("quantization").and_then(Value::as_object);
        let modules = quantization.into_iter().flatten();
        modules.filter(|(_, v)| **v == Value::Bool(false)).map(|(name, _)| name.as_str()).collect()
    }

    /// Packs every matrix whose row length is a multiple of the group size, as `mlx_lm.convert -q`
    /// does. If `dtype` is given, the float tensors are converted to it first. `progress` is called
    /// with the number of the current tensor and the total number of tensors.
    ///
    /// # Errors
    ///
    /// Returns an error for a checkpoint that is quantized already, and for a format that MLX does
    /// not have.
    pub fn quantized(
        mut self,
        to: Quantization,
        dtype: Option<Dtype>,
        mut progress: impl FnMut(usize, usize),
    ) -> Result<Self> {
        if ["quantization", "quantization_config"].iter().any(|key| self.config.contains_key(*key))
        {
            return Err(Error::file(
                &self.directory,
                "[quantize] expected float weights, got quantized ones",
            ));
        }
        let mut noted = to.to_json();
        self.config.insert("quantization".to_owned(), noted.clone());
        self.parsed()?; // returns an error for an invalid format before the work begins
        let total = self.tensors.len();
        let mut tensors = BTreeMap::new();
        // The loop removes tensors one by one, so that the floats of a matrix are freed once it is
        // packed.
        while let Some((name, array)) = self.tensors.pop_first() {
            progress(total - self.tensors.len(), total);
            let array = match dtype.filter(|_| array.dtype().is_floating()) {
                Some(dtype) => array.astype(dtype)?,
                None => array,
            };
            match matrix_path(&name, &array) {
                Some(path) if to.divides(array.dim(-1)?) => {
                    let Quantization { group_size, bits, mode } = to;
                    let packed = QuantizedWeight::quantize(&array, group_size, bits, mode)
                        .map_err(|e| self.of_tensor(&name, &e))?;
                    drop(array);
                    store(&mut tensors, path, packed.into())?;
                }
                path => {
                    if let Some(path) = path {
                        noted[path] = Value::Bool(false);
                    }
                    eval([&array])?;
                    tensors.insert(name, array);
                }
            }
        }
        self.config.insert("quantization".to_owned(), noted);
        Ok(Self { tensors, ..self })
    }

    /// Adds adapters to the weights that they name, as `mlx_lm.fuse` does. Packed weights with an
    /// update are packed again. With `dequantize`, all packed weights become floats instead.
    /// `progress` is called with the number of the current tensor and the total number of tensors.
    ///
    /// # Errors
    ///
    /// Returns an error for an update whose name or shape does not match a projection of the model.
    pub fn fused(
        mut self,
        adapters: &Adapters,
        dequantize: bool,
        mut progress: impl FnMut(usize, usize),
    ) -> Result<Self> {
        let llama = self.llama()?;
        adapters.iter().try_for_each(|(name, _)| llama.projection_shape(name).map(|_| ()))?;
        drop(llama);
        let config = self.parsed()?;
        let total = self.tensors.len();
        let mut tensors = BTreeMap::new();
        while let Some((name, array)) = self.tensors.pop_first() {
            progress(total - self.tensors.len(), total);
            if let Some(path) = name.strip_suffix(".biases").or(name.strip_suffix(".scales"))
                && self.tensors.contains_key(&format!("{path}.weight"))
            {
                // Names are sorted, so the weight of these scales or biases comes later in the
                // loop. The step for the weight then removes them from `tensors`.
                tensors.insert(name, array);
                continue;
            }
            let Some(path) = name.strip_suffix(".weight").filter(|_| array.ndim() == 2) else {
                tensors.insert(name, array);
                continue;
            };
            let mut part = |part: &str| tensors.remove(&format!("{path}.{part}"));
            let packed = config.quantization_of(path)?.zip(part("scales"));
            let mut matrix = match packed {
                Some((Quantization { group_size, bits, mode }, scales)) => {
                    QuantizedWeight::new(array, scales, part("biases"), group_size, bits, mode)
                        .map_err(|e| self.of_tensor(&name, &e))?
                        .into()
                }
                None => LinearWeight::Plain(array),
            };
            if let (true, LinearWeight::Quantized(packed)) = (dequantize, &matrix) {
                matrix = packed.dequantize()?.into();
            }
            if let Some(update) = adapters.get(path) {
                matrix = merged(update, matrix).map_err(|e| self.of_tensor(&name, &e))?;
            }
            store(&mut tensors, path, matrix)?;
        }
        if dequantize {
            self.config.remove("quantization");
            self.config.remove("quantization_config");
        }
        Ok(Self { tensors, ..self })
    }

    /// Replaces tensors by the weights that a full fine-tuning run of mlx_lm.lora wrote to the
    /// directory. Returns the number of weights, or `None` if the directory has low-rank updates.
    ///
    /// # Errors
    ///
    /// Returns an error if a file cannot be read, or if the checkpoint lacks a tensor with the name
    /// and shape of one of the weights. The error names the file.
    pub fn tuned(&mut self, directory: impl AsRef<Path>) -> Result<Option<usize>> {
        let directory = directory.as_ref();
        let Some(weights) = whole_weights(directory)? else { return Ok(None) };
        let count = weights.len();
        for (name, weight) in weights {
            match self.tensors.get_mut(&name) {
                Some(own) if own.shape() == weight.shape() && weight.dtype().is_floating() => {
                    *own = weight;
                }
                own => {
                    let own = own.map(|own| own.shape().to_vec());
                    let got = format_args!("{name:.120} {:?}, which is {own:?}", weight.shape());
                    let expected = format_args!("expected weights of the model, got {got} there");
                    return Err(Error::file(directory.join(ADAPTERS), expected));
                }
            }
        }
        Ok(Some(count))
    }

    pub(crate) fn parsed(&self) -> Result<Config> {
        Config::parse(&Value::Object(self.config.clone()).to_string()).map_err(|e| {
            match self.companions {
                Some(_) => Error::file(&self.directory, e),
                None => Error::file(self.directory.join("config.json"), e),
            }
        })
    }

    fn of_tensor(&self, name: &str, error: &Error) -> Error {
        Error::file(&self.directory, format_args!("{name}: {error}"))
    }
}

/// Returns the path of a module if the tensor is the module's float matrix; `None` for other
/// tensors.
pub(crate) fn matrix_path<'a>(name: &'a str, array: &Array) -> Option<&'a str> {
    name.strip_suffix(".weight").filter(|_| array.ndim() == 2 && array.dtype().is_floating())
}

/// Adds an update to a matrix with MLX's ops in mlx-lm's order, so that this crate and mlx-lm write
/// the same bytes.
fn merged(update: &Lora, matrix: LinearWeight) -> Result<LinearWeight> {
    let plain = match &matrix {
        LinearWeight::Plain(rows) => rows.clone(),
        LinearWeight::Quantized(packed) => packed.dequantize()?,
    };
    let [a, b] = update.to_mlx_lm()?;
    let scale = Array::scalar(update.scale())?.astype(b.dtype())?;
    // MLX's own `matmul` computes this product, as in mlx-lm, so that the bits are the same.
    let delta = builtin::matmul(&b.t()?.multiply(scale)?, &a.t()?)?;
    let mut sum = plain.add(delta.astype(plain.dtype())?)?;
    if let Some(magnitude) = update.magnitude() {
        let factors = magnitude.divide(sum.square()?.sum(-1)?.sqrt()?)?.expand_dims(-1)?;
        sum = factors.multiply(&sum)?.astype(plain.dtype())?;
    }
    Ok(match matrix {
        LinearWeight::Plain(_) => sum.into(),
        LinearWeight::Quantized(packed) => {
            let (group_size, bits) = (packed.group_size(), packed.bits());
            QuantizedWeight::quantize(&sum, group_size, bits, packed.mode())?.into()
        }
    })
}

/// Evaluates a matrix, and puts its weight, scales and biases into `tensors`.
fn store(tensors: &mut BTreeMap<String, Array>, path: &str, matrix: LinearWeight) -> Result<()> {
    match matrix {
        LinearWeight::Plain(rows) => {
            eval([&rows])?;
            tensors.insert(format!("{path}.weight"), rows);
        }
        LinearWeight::Quantized(packed) => {
            eval([packed.packed(), packed.scales()].into_iter().chain(packed.biases()))?;
            tensors.insert(format!("{path}.weight"), packed.packed().clone());
            tensors.insert(format!("{path}.scales"), packed.scales().clone());
            if let Some(biases) = packed.biases() {
                tensors.insert(format!("{path}.biases"), biases.clone());
            }
        }
    }
    Ok(())
}
