use std::collections::HashMap;

use crate::array::Array;
use crate::error::{Error, Result};

use super::random_weights::RandomWeights;

/// A checkpoint's tensors, taken out one by one as the model is put together.
pub struct Weights {
    arrays: HashMap<String, Array>,
    /// Where tensors are drawn instead.
    random: Option<RandomWeights>,
}

impl Weights {
    /// The tensors of one or several files.
    pub fn new(arrays: HashMap<String, Array>) -> Self {
        Self { arrays, random: None }
    }

    pub(super) fn random(source: RandomWeights) -> Self {
        Self { arrays: HashMap::new(), random: Some(source) }
    }

    pub(super) fn source(&mut self) -> Option<&mut RandomWeights> {
        self.random.as_mut()
    }

    /// The tensor of that name, which must have that shape and a floating type.
    pub fn take(&mut self, name: &str, shape: &[i32]) -> Result<Array> {
        if let Some(source) = &mut self.random {
            return source.tensor(name, shape);
        }
        self.take_optional(name, shape)?.ok_or_else(|| {
            Error::argument("weights", format_args!("a tensor {name} of shape {shape:?}, got none"))
        })
    }

    /// As [`take`](Self::take), or none if there is no such tensor.
    pub fn take_optional(&mut self, name: &str, shape: &[i32]) -> Result<Option<Array>> {
        if let Some(source) = &mut self.random {
            return source.optional(name, shape);
        }
        let Some(array) = self.arrays.remove(name) else { return Ok(None) };
        if array.shape() != shape || !array.dtype().is_floating() {
            return Err(Error::argument(
                "weights",
                format_args!(
                    "{name} of shape {shape:?} and a floating type, got {:?} of {}",
                    array.shape(),
                    array.dtype()
                ),
            ));
        }
        Ok(Some(array))
    }

    /// The tensor of that name, of any shape and type.
    pub(super) fn take_any(&mut self, name: &str) -> Option<Array> {
        self.arrays.remove(name)
    }

    /// An error that names a tensor nobody took, if there is one that a Llama does not have.
    pub fn finish(mut self, tied: bool) -> Result<()> {
        // Old checkpoints store what is computed; tied ones may store the embedding twice.
        self.arrays.retain(|name, _| {
            let stored_twice = tied && name == "lm_head.weight";
            !stored_twice && !name.ends_with("rotary_emb.inv_freq")
        });
        match self.arrays.keys().min() {
            None => Ok(()),
            Some(name) => Err(Error::argument(
                "weights",
                format_args!("only a Llama's tensors, got {name} ({} unused)", self.arrays.len()),
            )),
        }
    }
}
