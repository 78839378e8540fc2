use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::path::Path;

use serde::Deserialize;
use serde_json::{Map, Value, json};

use mlx_primitives::ops::Lora;
use mlx_primitives::support::files::{self, NewFolders, Replacement};
use mlx_primitives::{Array, Error, Result, io};

use super::peft_adapters;
use crate::base::{cut, parse_object, short};
use crate::model::{Adapters, Llama};

const CONFIG: &str = "adapter_config.json";
pub(crate) const ADAPTERS: &str = "adapters.safetensors";

/// The fields of mlx-lm's `adapter_config.json` that this crate needs to load adapters.
#[derive(Deserialize)]
struct AdapterConfig {
    /// The number of layers that have updates, counted from the last layer. 0 or less means all
    /// layers.
    num_layers: i64,
    lora_parameters: LoraParameters,
    /// Whether each update has a magnitude (DoRA).
    #[serde(skip)]
    dora: bool,
}

#[derive(Deserialize)]
struct LoraParameters {
    rank: i32,
    scale: f32,
    /// The paths of the updated projections, within a layer or within the model. If absent, all
    /// projections of the layers that `num_layers` selects are updated.
    keys: Option<Vec<String>>,
}

impl AdapterConfig {
    fn parse(value: Map<String, Value>) -> std::result::Result<Self, String> {
        let refuse = |expected: &str, got: &dyn std::fmt::Display| {
            Err(format!("[adapters] expected {expected}, got {got}"))
        };
        // Checks the type of fine-tuning first, because the other fields depend on it.
        let kind = value.get("fine_tune_type").filter(|kind| !kind.is_null());
        let dora = kind.is_some_and(|kind| kind == "dora");
        if let Some(kind) = kind.filter(|kind| !dora && **kind != "lora") {
            let hint = match kind.as_str() {
                Some("full") => ": mlx-primitives fuse writes a whole model of these weights",
                _ => "",
            };
            return refuse("fine_tune_type lora or dora", &format_args!("{}{hint}", short(kind)));
        }
        let mut config: Self = serde_json::from_value(Value::Object(value)).map_err(|e| {
            format!(
                "[adapters] expected num_layers and lora_parameters of mlx-lm, got {}",
                cut(&e.to_string())
            )
        })?;
        config.dora = dora;
        let LoraParameters { rank, scale, .. } = &config.lora_parameters;
        if *rank < 1 {
            return refuse("a rank above 0", rank);
        }
        if !scale.is_finite() {
            return refuse("a finite scale", scale);
        }
        Ok(config)
    }

    /// Whether mlx-lm updates the projection `name` with this configuration.
    fn updates(&self, name: &str, layers: i32) -> bool {
        let keys = self.lora_parameters.keys.as_ref();
        if keys.is_some_and(|keys| keys.iter().any(|key| key == name)) {
            return true;
        }
        let Some((layer, path)) = split_layer(name) else { return false };
        let updated = match self.num_layers {
            ..=0 => true,
            last => i64::from(layer) >= i64::from(layers).saturating_sub(last),
        };
        updated && keys.is_none_or(|keys| keys.iter().any(|key| key == path))
    }
}

/// Splits `model.layers.3.mlp.up_proj` into 3 and `mlp.up_proj`.
fn split_layer(name: &str) -> Option<(i32, &str)> {
    let (layer, path) = name.strip_prefix("model.layers.")?.split_once('.')?;
    Some((layer.parse().ok()?, path))
}

impl Adapters {
    /// Loads adapters that were made for this model. The directory has `adapter_config.json` and
    /// either mlx-lm's `adapters.safetensors` or, if the configuration has a `peft_type`, the
    /// `adapter_model.safetensors` of Hugging Face's PEFT. `dropout` is ignored, because only
    /// training uses it.
    ///
    /// # Errors
    ///
    /// Returns an error for a `fine_tune_type` other than lora and dora, and for a `peft_type`
    /// other than LORA. PEFT's adapters with DoRA, biases or fully trained modules are also errors.
    /// Every tensor must have the right shape and type, and belong to a projection that the
    /// configuration names. Every update must have all of its tensors. The error names the file
    /// and, if a tensor is at fault, the tensor.
    ///
    /// ```
    /// use mlx_primitives_llama::{Adapters, Checkpoint};
    /// use mlx_primitives::ops::Lora;
    ///
    /// let llama = Checkpoint::demo()?.llama;
    /// let name = "model.layers.3.self_attn.v_proj".to_owned();
    /// let update = Lora::initial(llama.projection_shape(&name)?, 4, 2.0)?;
    /// let adapters: Adapters = [(name, update)].into_iter().collect();
    /// # let directory = std::env::temp_dir().join(format!("adapters-{}", std::process::id()));
    /// adapters.save(&directory, &llama)?;
    /// let llama = { let loaded = Adapters::load(&directory, &llama)?; llama.adapted(&loaded)? };
    /// # std::fs::remove_dir_all(&directory).ok();
    /// # Ok::<(), mlx_primitives::Error>(())
    /// ```
    pub fn load(directory: impl AsRef<Path>, llama: &Llama) -> Result<Self> {
        let path = directory.as_ref().join(CONFIG);
        let text = files::read_to_string(&path)?;
        let config = parse_object(&text).map_err(|e| Error::file(&path, e))?;
        if config.contains_key("peft_type") {
            return peft_adapters::load(directory.as_ref(), &path, &config, llama);
        }
        let config = AdapterConfig::parse(config).map_err(|reason| Error::file(&path, reason))?;
        let path = directory.as_ref().join(ADAPTERS);
        let tensors = io::load_safetensors(&path)?.arrays;
        config
            .assembled(tensors, llama)
            .map_err(|reason| Error::file(&path, format_args!("[adapters] expected {reason}")))
    }

    /// Writes `adapter_config.json` and `adapters.safetensors`. For this model, mlx-lm and
    /// [`load`](Self::load) read the same updates from these files. Files of an earlier save are
    /// replaced once both new files are complete.
    ///
    /// # Errors
    ///
    /// Returns an error if there are no updates, if a name is not the name of a projection, or if
    /// the directory cannot be written. It is also an error if the updates differ in rank or scale,
    /// or if only some have magnitudes, because the format cannot express these differences.
    pub fn save(&self, directory: impl AsRef<Path>, llama: &Llama) -> Result<()> {
        let directory = directory.as_ref();
        let mut tensors = BTreeMap::new();
        let (mut keys, mut first_layer) = (BTreeSet::new(), llama.config().num_hidden_layers);
        let mut common = None;
        for (name, update) in self.iter() {
            llama.projection_shape(name)?;
            let own = (update.a().dim(0)?, update.scale(), update.magnitude().is_some());
            if *common.get_or_insert(own) != own {
                return Err(Error::argument(
                    "adapters",
                    format_args!("updates of one rank, scale and kind, got {common:?} and {own:?}"),
                ));
            }
            match split_layer(name) {
                Some((layer, path)) => {
                    keys.insert(path.to_owned());
                    first_layer = first_layer.min(layer);
                }
                None => {
                    keys.insert(name.to_owned());
                }
            }
            let [a, b] = update.to_mlx_lm()?;
            tensors.insert(format!("{name}.lora_a"), a);
            tensors.insert(format!("{name}.lora_b"), b);
            tensors.extend(update.magnitude().map(|m| (format!("{name}.m"), m.clone())));
        }
        let Some((rank, scale, dora)) = common else {
            return Err(Error::argument("adapters", "updates to save, got none"));
        };
        let config = json!({
            "fine_tune_type": if dora { "dora" } else { "lora" },
            // mlx-lm reads 0 as "all layers", so the number is at least 1.
            "num_layers": (llama.config().num_hidden_layers - first_layer).max(1),
            "lora_parameters": {"rank": rank, "scale": scale, "dropout": 0.0, "keys": keys},
        });
        let folders = NewFolders::create(directory).map_err(|e| Error::io(directory, e))?;
        write_adapters(directory, &format!("{config:#}\n"), &tensors)?;
        folders.keep();
        Ok(())
    }
}

/// Returns the weights, by name, that a full fine-tune by mlx-lm wrote to this directory. Returns
/// `None` if the configuration has another `fine_tune_type`.
pub(crate) fn whole_weights(directory: &Path) -> Result<Option<HashMap<String, Array>>> {
    let path = directory.join(CONFIG);
    let text = files::read_to_string(&path)?;
    let config = parse_object(&text).map_err(|e| Error::file(&path, e))?;
    match config.get("fine_tune_type").and_then(Value::as_str) {
        Some("full") => Ok(Some(io::load_safetensors(directory.join(ADAPTERS))?.arrays)),
        _ => Ok(None),
    }
}

/// Writes the configuration and the tensors. If writing one of the files fails, both previous files
/// stay.
pub(crate) fn write_adapters(
    directory: &Path,
    config: &str,
    tensors: &BTreeMap<String, Array>,
) -> Result<()> {
    let configured = Replacement::of(&directory.join(CONFIG))?;
    configured.write(|path| fs::write(path, config).map_err(|e| Error::io(path, e)))?;
    let stored = Replacement::of(&directory.join(ADAPTERS))?;
    let named = tensors.iter().map(|(name, array)| (name.as_str(), array));
    stored.write(|path| io::save_safetensors(path, named, []))?;
    stored.commit()?;
    configured.commit()
}

impl AdapterConfig {
    /// Makes updates from the file's tensors. The error is the end of a message, after the word
    /// "expected".
    fn assembled(
        &self,
        tensors: HashMap<String, Array>,
        llama: &Llama,
    ) -> std::result::Result<Adapters, String> {
        let layers = llama.config().num_hidden_layers;
        let rank = self.lora_parameters.rank;
        let mut parts: BTreeMap<String, [Option<Array>; 3]> = BTreeMap::new();
        for (name, tensor) in tensors {
            let (path, part) = match name.rsplit_once('.') {
                Some((path, "lora_a")) => (path, 0),
                Some((path, "lora_b")) => (path, 1),
                Some((path, "m")) if self.dora => (path, 2),
                _ => return Err(format!("only tensors lora_a and lora_b, got {name}")),
            };
            let shape = llama.projection_shape(path).ok();
            let Some([outputs, inputs]) = shape.filter(|_| self.updates(path, layers)) else {
                let keys = self.lora_parameters.keys.as_ref().map_or_else(
                    || "all projections".to_owned(),
                    |keys| format!("keys {:.120}", keys.join(", ")),
                );
                return Err(format!(
                    "tensors of projections that {CONFIG} names (num_layers {}, {keys}), got {name:.120}",
                    self.num_layers
                ));
            };
            let shape = [vec![inputs, rank], vec![rank, outputs], vec![outputs]][part].clone();
            if tensor.shape() != shape || !tensor.dtype().is_floating() {
                return Err(format!(
                    "{name} of shape {shape:?} and a floating type, got {:?} of {}",
                    tensor.shape(),
                    tensor.dtype()
                ));
            }
            parts.entry(path.to_owned()).or_default()[part] = Some(tensor);
        }
        let scale = self.lora_parameters.scale;
        let update = |(path, parts): (String, [Option<Array>; 3])| {
            let [a, b, magnitude] = parts;
            let missing = |part| format!("a tensor {path}.{part}, got none");
            let (a, b) = (a.ok_or_else(|| missing("lora_a"))?, b.ok_or_else(|| missing("lora_b"))?);
            let mut update = Lora::from_mlx_lm(&a, &b, scale);
            if self.dora {
                let magnitude = magnitude.ok_or_else(|| missing("m"))?;
                update = update.and_then(|update| update.with_magnitude(magnitude));
            }
            let update = update.map_err(|error| format!("{path} to be an update: {error}"))?;
            Ok((path, update))
        };
        parts.into_iter().map(update).collect()
    }
}
