//! The files of a training run: the adapters, which other programs can read, and the state, from
//! which the run can be resumed.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::Path;

use serde_json::json;

use mlx_primitives::support::files::{NewFolders, Replacement};
use mlx_primitives::{Array, Dtype, Error, Result, eval, io};

use super::optimizer::Parameters;
use super::trainable::Kind;
use super::trainer::Trainer;
use crate::files::{ADAPTERS, write_adapters};

const FORMAT: &str = "mlx-primitives training 1";
const STATE: &str = "training_state.safetensors";

impl Trainer<'_> {
    /// Writes the state of the run to the file `training_state.safetensors`. An earlier file is
    /// replaced only when the new file is complete. Then writes mlx-lm's `adapter_config.json` and
    /// `adapters.safetensors`. With `numbered`, also copies `adapters.safetensors` to a file whose
    /// name begins with the number of steps.
    ///
    /// # Errors
    ///
    /// Returns an error that names the file that cannot be written.
    pub fn save(&self, directory: impl AsRef<Path>, numbered: bool) -> Result<()> {
        let directory = directory.as_ref();
        let folders = NewFolders::create(directory).map_err(|e| Error::io(directory, e))?;
        let metadata = json!({
            "run": self.run()?,
            "steps": self.steps,
            "updates": self.optimizer.updates,
            "trained_tokens": self.trained_tokens,
            // Losses are stored as bit patterns, since a decimal number in JSON may be parsed as a
            // neighboring float.
            "recent_sum": self.recent.0.to_bits(),
            "recent_count": self.recent.1,
            "curve": self.curve.iter().map(|(at, loss)| [*at, loss.to_bits()]).collect::<Vec<_>>(),
        });
        let metadata = metadata.to_string();
        let file = Replacement::of(&directory.join(STATE))?;
        let arrays = self.arrays();
        let named = arrays.iter().map(|(name, array)| (name.as_str(), *array));
        let metadata = [("format", FORMAT), ("state", &metadata)];
        file.write(|partial| io::save_safetensors(partial, named, metadata))?;
        file.commit()?;
        folders.keep();
        match self.trainable.kind {
            Kind::Lora { .. } => self.adapters()?.save(directory, self.llama)?,
            Kind::Full => self.save_weights(directory)?,
        }
        if numbered {
            let from = directory.join(ADAPTERS);
            let to = directory.join(format!("{:07}_{ADAPTERS}", self.steps));
            let copy = Replacement::of(&to)?;
            copy.write(|to| fs::copy(&from, to).map(drop).map_err(|e| Error::io(&from, e)))?;
            copy.commit()?;
        }
        Ok(())
    }

    fn save_weights(&self, directory: &Path) -> Result<()> {
        let weights = self.model()?.weights();
        let from_one = self.llama.config().kind()?.norms_from_one();
        let mut tensors = BTreeMap::new();
        for name in self.parameters.keys() {
            let arrays = weights.get(name).into_iter().flat_map(|weight| weight.arrays());
            for array in arrays {
                let shifted = from_one && name.ends_with("norm.weight");
                let stored = if shifted { array.subtract(1.0)? } else { array.contiguous()? };
                tensors.insert(name.clone(), stored);
            }
        }
        eval(tensors.values())?;
        let config = json!({
            "fine_tune_type": "full",
            "num_layers": self.trainable.layers,
            "lora_parameters": null,
        });
        write_adapters(directory, &format!("{config:#}\n"), &tensors)
    }

    /// All arrays of the state, with their names in the state file.
    fn arrays(&self) -> BTreeMap<String, &Array> {
        let named = |kind: &'static str, arrays| {
            let arrays: &Parameters = arrays;
            arrays.iter().map(move |(name, array)| (format!("{kind}:{name}"), array))
        };
        let parameters = named("parameter", &self.parameters);
        let optimizer = named("optimizer", &self.optimizer.arrays);
        parameters.chain(optimizer).chain(named("gradient", &self.gradients)).collect()
    }

    /// Returns a string that identifies the model, the data and the settings. A run can resume
    /// another run only if these strings are equal.
    fn run(&self) -> Result<String> {
        let (model, data) = (self.llama.fingerprint()?, self.data.hash());
        let (trainable, settings) = (&self.trainable, &self.settings);
        Ok(format!("model {model}, data {data:016x}, {trainable:?}, {settings:?}"))
    }

    /// Continues a run from the state that [`save`](Self::save) wrote to a folder. Returns whether
    /// the folder has such a state. The next steps give the same bits as in a run without
    /// interruption.
    ///
    /// # Errors
    ///
    /// Returns an error if the file is damaged, or if a run with another model, other data or other
    /// settings wrote it. The error names the file.
    pub fn resume(&mut self, directory: impl AsRef<Path>) -> Result<bool> {
        let path = directory.as_ref().join(STATE);
        if !path.exists() {
            return Ok(false);
        }
        let restored = self.restore(&path);
        restored.map(|()| true).map_err(|error| match error.path() {
            Some(_) => error,
            None => Error::file(&path, error),
        })
    }

    fn restore(&mut self, path: &Path) -> Result<()> {
        let refuse = |expected: &str, got: &str| {
            Error::file(path, format_args!("expected {expected}, got {got:.400}"))
        };
        let mut file = io::load_safetensors(path)?;
        let text = |name: &str| file.metadata.get(name).map(String::as_str).unwrap_or_default();
        if text("format") != FORMAT {
            return Err(refuse(&format!("a file of format {FORMAT:?}"), text("format")));
        }
        let state: serde_json::Value = serde_json::from_str(text("state"))
            .map_err(|e| refuse("a state in JSON", &e.to_string()))?;
        let (run, saved) = (self.run()?, state["run"].as_str().unwrap_or_default());
        if saved != run {
            return Err(refuse(&format!("a run of {run}"), saved));
        }
        let count =
            |key: &str| state[key].as_u64().ok_or_else(|| refuse(key, &state[key].to_string()));
        let (steps, updates) = (count("steps")?, count("updates")?);
        let trained_tokens = count("trained_tokens")?;
        let curve: Vec<[u64; 2]> = serde_json::from_value(state["curve"].clone())
            .map_err(|e| refuse("pairs of steps and losses", &e.to_string()))?;
        let recent = (f64::from_bits(count("recent_sum")?), count("recent_count")?);
        if !steps.is_multiple_of(self.settings.accumulation) {
            self.gradients = self.parameters.clone(); // gives the shapes to expect in the file
        }
        let mut arrays = Vec::new();
        for (name, own) in self.arrays() {
            let array = file
                .arrays
                .remove(&name)
                .filter(|array| array.shape() == own.shape() && array.dtype() == Dtype::Float32);
            arrays.push(array.ok_or_else(|| refuse(&name, "none of its shape"))?);
        }
        if let Some(name) = file.arrays.keys().next() {
            return Err(refuse("only arrays of this run", name));
        }
        eval(&arrays)?;
        // `self.arrays` sorts arrays by name, so gradients come first, then the optimizer's arrays,
        // then parameters.
        let mut arrays = arrays.into_iter();
        for kind in [&mut self.gradients, &mut self.optimizer.arrays, &mut self.parameters] {
            kind.values_mut().zip(&mut arrays).for_each(|(own, array)| *own = array);
        }
        (self.steps, self.optimizer.updates) = (steps, updates);
        (self.trained_tokens, self.recent) = (trained_tokens, recent);
        self.curve = curve.iter().map(|[at, loss]| (*at, f64::from_bits(*loss))).collect();
        Ok(())
    }

    /// Loads the parameters from an `adapters.safetensors` that [`save`](Self::save) or mlx-lm
    /// wrote. The state of the optimizer is not loaded.
    ///
    /// # Errors
    ///
    /// Returns an error if the tensors in the file do not match the trained parameters. The error
    /// names the file.
    pub fn load_adapters(&mut self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let mut file: HashMap<String, Array> = io::load_safetensors(path)?.arrays;
        let from_one = self.llama.config().kind()?.norms_from_one();
        let mut loaded = Parameters::new();
        for (name, own) in &self.parameters {
            let is_update = name.ends_with(".lora_a") || name.ends_with(".lora_b");
            let stored = file.remove(name).and_then(|array| match is_update {
                true => array.t().and_then(|array| array.contiguous()).ok(),
                false => Some(array),
            });
            let stored = stored.filter(|it| it.shape() == own.shape() && it.dtype().is_floating());
            let Some(mut array) = stored else {
                let expected = format_args!("expected {name} of the trained shape, got none");
                return Err(Error::file(path, expected));
            };
            if from_one && !is_update && name.ends_with("norm.weight") {
                array = array.add(1.0)?;
            }
            loaded.insert(name.clone(), array.astype(Dtype::Float32)?);
        }
        if let Some(name) = file.keys().min() {
            let expected = format_args!("expected only tensors that are trained, got {name:.120}");
            return Err(Error::file(path, expected));
        }
        eval(loaded.values())?;
        self.parameters = loaded;
        Ok(())
    }

    /// Checks whether [`save`](Self::save) could write to a folder.
    ///
    /// # Errors
    ///
    /// Returns the error that [`save`](Self::save) would return for the folder's name or
    /// permissions.
    pub fn check_path(directory: impl AsRef<Path>) -> Result<()> {
        let directory = directory.as_ref();
        let folders = NewFolders::create(directory).map_err(|e| Error::io(directory, e))?;
        let checked = Replacement::of(&directory.join(STATE)).map(drop);
        drop(folders);
        checked
    }
}
