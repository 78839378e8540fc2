//! Loads adapters from the files of Hugging Face's PEFT.

use std::collections::BTreeMap;
use std::path::Path;

use regex::{Regex, RegexBuilder};
use serde_json::{Map, Value};

use mlx_primitives::ops::Lora;
use mlx_primitives::{Array, Error, Result, io};

use crate::base::short;
use crate::model::{Adapters, Llama};

const TENSORS: &str = "adapter_model.safetensors";

/// Fields that change weights outside the low-rank updates, or that add other kinds of updates.
/// They are refused, except if they are false, null, 0 or empty.
const REFUSED: [&str; 9] = [
    "use_dora",
    "lora_bias",
    "use_qalora",
    "modules_to_save",
    "trainable_token_indices",
    "target_parameters",
    "layer_replication",
    "alora_invocation_tokens",
    "arrow_config",
];

/// Initialization methods of adapters that also change the model's weights.
const CHANGING: [&str; 4] = ["pissa", "olora", "corda", "loftq"];

/// The fields of `adapter_config.json` that matter after training.
struct PeftConfig {
    rank: i64,
    alpha: f64,
    rank_stabilized: bool,
    /// The ends of the paths of updated modules. If the field is not a list, this is `None`, and
    /// all modules may be updated.
    modules: Option<Vec<String>>,
    ranks: Vec<(Pattern, f64)>,
    alphas: Vec<(Pattern, f64)>,
}

/// Loads the updates of a PEFT adapter. `config` is the content of its `adapter_config.json`, and
/// `path` is the path of this file.
pub(crate) fn load(
    directory: &Path,
    path: &Path,
    config: &Map<String, Value>,
    llama: &Llama,
) -> Result<Adapters> {
    let config = PeftConfig::parse(config)
        .map_err(|reason| Error::file(path, format_args!("[adapters] expected {reason}")))?;
    let path = directory.join(TENSORS);
    if !path.exists() && directory.join("adapter_model.bin").exists() {
        let reason = "[adapters] expected this file, got adapter_model.bin alone: PEFT's \
                      save_pretrained with safe_serialization writes it";
        return Err(Error::file(path, reason));
    }
    let tensors = io::load_safetensors(&path)?.arrays;
    config
        .assembled(tensors.into_iter().collect(), llama)
        .map_err(|reason| Error::file(&path, format_args!("[adapters] expected {reason}")))
}

fn refuse<T>(expected: &str, got: &Value) -> std::result::Result<T, String> {
    Err(format!("{expected}, got {}", short(got)))
}

impl PeftConfig {
    fn parse(config: &Map<String, Value>) -> std::result::Result<Self, String> {
        let get = |key: &str| config.get(key).filter(|value| !value.is_null());
        if let Some(kind) = get("peft_type").filter(|kind| **kind != "LORA") {
            return refuse("peft_type LORA", kind);
        }
        for key in REFUSED {
            let Some(value) = get(key) else { continue };
            let empty = match value {
                Value::Bool(on) => !on,
                Value::Array(list) => list.is_empty(),
                Value::Object(map) => map.is_empty(),
                other => other.as_f64() == Some(0.0),
            };
            if !empty {
                return refuse(&format!("no {key}"), value);
            }
        }
        if let Some(bias) = get("bias").filter(|bias| **bias != "none") {
            return refuse("bias none", bias);
        }
        if let Some(Value::String(how)) = get("init_lora_weights")
            && CHANGING.iter().any(|changing| how.starts_with(changing))
        {
            return Err(format!(
                "init_lora_weights that leave the model's weights as they are, got {how:.40}: PEFT's \
                 save_pretrained with path_initial_model_for_weight_conversion converts them"
            ));
        }
        let flag = |key: &str| match get(key) {
            None => Ok(false),
            Some(Value::Bool(on)) => Ok(*on),
            Some(other) => refuse(&format!("true or false as {key}"), other),
        };
        let number = |key: &str, default: f64| match get(key) {
            None => Ok(default),
            Some(value) => match value.as_f64().filter(|number| number.is_finite()) {
                Some(number) => Ok(number),
                None => refuse(&format!("a number {key}"), value),
            },
        };
        let rank = number("r", 8.0)?;
        if !(rank >= 1.0 && rank.fract() == 0.0 && rank < f64::from(i32::MAX)) {
            return Err(format!("a rank r above 0, got {rank}"));
        }
        let modules = match get("target_modules") {
            Some(Value::Array(names)) => {
                let names = names.iter().map(|name| name.as_str().map(str::to_owned));
                Some(names.collect::<Option<Vec<_>>>().ok_or("names in target_modules")?)
            }
            _ => None,
        };
        Ok(Self {
            rank: rank as i64,
            alpha: number("lora_alpha", 8.0)?,
            rank_stabilized: flag("use_rslora")?,
            modules,
            ranks: patterns(get("rank_pattern"), "rank_pattern")?,
            alphas: patterns(get("alpha_pattern"), "alpha_pattern")?,
        })
    }

    /// Makes updates from the file's tensors. The text of an error continues a message that begins
    /// with "expected".
    fn assembled(
        &self,
        tensors: BTreeMap<String, Array>,
        llama: &Llama,
    ) -> std::result::Result<Adapters, String> {
        let mut halves: BTreeMap<String, [Option<Array>; 2]> = BTreeMap::new();
        for (name, tensor) in tensors {
            let inner = name.strip_prefix("base_model.model.").unwrap_or(&name);
            let found = [".lora_A", ".lora_B"].into_iter().enumerate().find_map(|(half, part)| {
                let (path, end) = inner.rsplit_once(part)?;
                // In older files, the name of the adapter comes before `.weight`.
                [".weight", ".default.weight"].contains(&end).then_some((path, half))
            });
            let Some((path, half)) = found else {
                return Err(format!(
                    "only lora_A.weight and lora_B.weight of projections, got {name:.120}"
                ));
            };
            let shape = llama.projection_shape(path).ok();
            let named = |modules: &Vec<String>| modules.iter().any(|module| ends(path, module));
            let Some([outputs, inputs]) = shape.filter(|_| self.modules.as_ref().is_none_or(named))
            else {
                return Err(format!(
                    "tensors of the model's projections that target_modules names, got {name:.120}"
                ));
            };
            let (extent, axis) = [(inputs, 1), (outputs, 0)][half];
            let fits = tensor.ndim() == 2 && tensor.shape().get(axis) == Some(&extent);
            if !fits || !tensor.dtype().is_floating() {
                let expected = match half {
                    0 => format!("[rank, {inputs}]"),
                    _ => format!("[{outputs}, rank]"),
                };
                return Err(format!(
                    "{name:.120} of shape {expected} and a floating type, got {:?} of {}",
                    tensor.shape(),
                    tensor.dtype()
                ));
            }
            halves.entry(path.to_owned()).or_default()[half] = Some(tensor);
        }
        let update = |(path, [a, b]): (String, [Option<Array>; 2])| {
            let (Some(a), Some(b)) = (a, b) else {
                return Err(format!("both lora_A and lora_B of {path:.120}, got one"));
            };
            let rank = a.shape().first().copied().unwrap_or(0);
            let stated = value_of(&self.ranks, &path).unwrap_or(self.rank as f64);
            if f64::from(rank) != stated {
                return Err(format!("updates of rank {stated} for {path:.120}, got {rank}"));
            }
            let alpha = value_of(&self.alphas, &path).unwrap_or(self.alpha);
            let divisor = if self.rank_stabilized { stated.sqrt() } else { stated };
            match Lora::new(a, b, (alpha / divisor) as f32) {
                Ok(update) => Ok((path, update)),
                Err(error) => Err(format!("{path:.120} to be an update: {error}")),
            }
        };
        halves.into_iter().map(update).collect()
    }
}

/// Whether a module's path is `name`, or ends in a dot and `name`.
fn ends(path: &str, name: &str) -> bool {
    path.strip_suffix(name).is_some_and(|before| before.is_empty() || before.ends_with('.'))
}

/// A pattern for the paths of modules. It must match the whole path, or the rest of the path after
/// a dot.
enum Pattern {
    /// A path without operators.
    Path(String),
    Regex(Regex),
}

impl Pattern {
    fn parse(pattern: &str) -> Option<Self> {
        if pattern.chars().all(|c| c.is_ascii_alphanumeric() || "_.".contains(c)) {
            return Some(Self::Path(pattern.to_owned()));
        }
        let whole = format!(r"^(?:.*\.)?(?:{pattern})$");
        RegexBuilder::new(&whole).size_limit(1 << 18).build().ok().map(Self::Regex)
    }

    fn matches(&self, path: &str) -> bool {
        match self {
            Self::Path(end) => ends(path, end),
            Self::Regex(regex) => regex.is_match(path),
        }
    }
}

/// The maximum number of regular expressions in a field.
const MOST_PATTERNS: usize = 256;

/// Reads the patterns of a field, each with a rank or an alpha, in the order of the file.
fn patterns(field: Option<&Value>, key: &str) -> std::result::Result<Vec<(Pattern, f64)>, String> {
    let Some(field) = field else { return Ok(Vec::new()) };
    let Value::Object(map) = field else { return refuse(&format!("an object {key}"), field) };
    let (mut all, mut regexes) = (Vec::new(), 0);
    for (pattern, number) in map {
        let parsed = Pattern::parse(pattern);
        regexes += usize::from(matches!(parsed, Some(Pattern::Regex(_))));
        let Some(parsed) = parsed.filter(|_| regexes <= MOST_PATTERNS) else {
            return Err(format!("at most {MOST_PATTERNS} patterns in {key}, got {pattern:.80}"));
        };
        match number.as_f64().filter(|number| number.is_finite()) {
            Some(number) => all.push((parsed, number)),
            None => return refuse(&format!("numbers in {key}"), number),
        }
    }
    Ok(all)
}

/// Returns the rank or alpha of the first pattern that matches the path.
fn value_of(patterns: &[(Pattern, f64)], path: &str) -> Option<f64> {
    patterns.iter().find(|(pattern, _)| pattern.matches(path)).map(|(_, number)| *number)
}
