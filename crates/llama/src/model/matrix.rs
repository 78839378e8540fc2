use std::ops::Range;

use mlx_primitives::io::stored::Stored;
use mlx_primitives::ops::{LinearWeight, QuantizedMode, QuantizedWeight};
use mlx_primitives::support::Block;
use mlx_primitives::{Array, Dtype, Result};

use crate::base::{Config, Quantization, Weights};

/// A stored matrix `[outputs, inputs]`.
#[derive(Clone)]
pub(crate) enum Matrix {
    Plain(Array),
    Quantized(QuantizedWeight),
}

impl From<LinearWeight> for Matrix {
    fn from(weight: LinearWeight) -> Self {
        match weight {
            LinearWeight::Plain(rows) => Self::Plain(rows),
            LinearWeight::Quantized(rows) => Self::Quantized(rows),
        }
    }
}

impl Matrix {
    /// The matrix as the ops take it.
    pub(crate) fn weight(&self) -> LinearWeight {
        match self {
            Self::Plain(rows) => rows.into(),
            Self::Quantized(rows) => rows.into(),
        }
    }

    /// The matrix at `path`. Its format is that which the configuration has for its name, or that
    /// of its scales if the configuration has packed modules at all.
    pub(crate) fn load(
        path: &str,
        [outputs, inputs]: [i32; 2],
        config: &Config,
        weights: &mut Weights,
    ) -> Result<Self> {
        let own = weights.share().rows(path, outputs);
        if let Some(source) = weights.source() {
            let rows = source.matrix([outputs, inputs], own, config.quantization_of(path)?)?;
            return Ok(rows.into());
        }
        let name = |part: &str| format!("{path}.{part}");
        let (weight, scales) = (name("weight"), name("scales"));
        let quantized = match config.quantization_by_name(path)? {
            Some(named) => named,
            None if config.quantization.is_some() && weights.contains(&scales) => {
                Some(shown(path, inputs, weights)?)
            }
            None => None,
        };
        let Some(Quantization { group_size, bits, mode }) = quantized else {
            let all = Self::Plain(weights.take(&weight, &[outputs, inputs])?);
            return all.part(&own);
        };
        let mut take = |part: &str| {
            weights.take_any(part).ok_or_else(|| {
                let expected = format_args!("a tensor {part} for packed weights, got none");
                weights.error(part, expected)
            })
        };
        let (packed, scales) = (take(&weight)?, take(&scales)?);
        let biases = match mode {
            QuantizedMode::Affine => Some(take(&name("biases"))?),
            _ => None,
        };
        let matrix = QuantizedWeight::new(packed, scales, biases, group_size, bits, mode);
        let matrix = matrix
            .map_err(|e| weights.error(&weight, format_args!("{weight} to be quantized: {e}")))?;
        if [matrix.outputs(), matrix.inputs()] != [outputs, inputs] {
            let got = [matrix.outputs(), matrix.inputs()];
            let expected = format_args!("{weight} of shape [{outputs}, {inputs}], got {got:?}");
            return Err(weights.error(&weight, expected));
        }
        Self::Quantized(matrix).part(&own)
    }

    /// These rows of the matrix. Of one that waits to be read from a file, only they are read.
    fn part(self, rows: &Range<i32>) -> Result<Self> {
        if *rows == (0..self.shape()?[0]) {
            return Ok(self);
        }
        Ok(match self {
            Self::Plain(all) => Self::Plain(Stored::part(&all, 0, rows)?),
            Self::Quantized(all) => {
                Self::Quantized(all.map_arrays(|array| Stored::part(array, 0, rows))?)
            }
        })
    }

    /// The type of the matrix's numbers.
    pub(crate) fn dtype(&self) -> Dtype {
        match self {
            Self::Plain(rows) => rows.dtype(),
            Self::Quantized(rows) => match rows.mode() {
                QuantizedMode::Affine => rows.scales().dtype(),
                _ => Dtype::Bfloat16,
            },
        }
    }

    pub(crate) fn arrays(&self) -> Vec<&Array> {
        match self {
            Self::Plain(rows) => vec![rows],
            Self::Quantized(rows) => rows.arrays().collect(),
        }
    }

    /// The rows at the indices `ids`, in `dtype`.
    pub(crate) fn rows(&self, ids: &Array, dtype: Dtype) -> Result<Array> {
        match self {
            Self::Plain(rows) => rows.take(ids, 0)?.astype(dtype),
            // Rounded to the type of the matrix first, as in MLX.
            Self::Quantized(rows) => rows.take_rows(ids, self.dtype())?.astype(dtype),
        }
    }

    /// The numbers of outputs and inputs.
    pub(crate) fn shape(&self) -> Result<[i32; 2]> {
        match self {
            Self::Plain(rows) => Ok([rows.dim(0)?, rows.dim(1)?]),
            Self::Quantized(rows) => Ok([rows.outputs(), rows.inputs()]),
        }
    }

    /// The number of parameters, packed or not.
    pub(crate) fn size(&self) -> u64 {
        match self {
            Self::Plain(rows) => rows.size() as u64,
            Self::Quantized(rows) => {
                u64::from(rows.outputs().unsigned_abs()) * u64::from(rows.inputs().unsigned_abs())
            }
        }
    }

    /// The matrix copied into a separate block, or the matrix itself if no block is large enough.
    pub(crate) fn placed_alone(self) -> Result<Self> {
        match Block::with_room_for(Block::bytes_of(self.arrays()))? {
            Some(mut block) => self.placed(&mut block),
            None => Ok(self),
        }
    }

    /// The matrix copied into a block.
    pub(crate) fn placed(&self, block: &mut Block) -> Result<Self> {
        Ok(match self {
            Self::Plain(rows) => Self::Plain(block.place(rows)?),
            Self::Quantized(rows) => Self::Quantized(rows.map_arrays(|array| block.place(array))?),
        })
    }

    pub(crate) fn nbytes(&self) -> usize {
        match self {
            Self::Plain(rows) => rows.nbytes(),
            Self::Quantized(rows) => rows.nbytes(),
        }
    }

    /// The matrix packed, if it is not packed yet and its rows are whole groups.
    pub(crate) fn quantized(&self, to: Quantization) -> Result<Self> {
        match self {
            Self::Plain(rows) if to.divides(rows.dim(-1)?) => {
                let Quantization { group_size, bits, mode } = to;
                Ok(Self::Quantized(QuantizedWeight::quantize(rows, group_size, bits, mode)?))
            }
            other => Ok(other.clone()),
        }
    }
}

/// Whether both matrices have one format, so that one dispatch can read them.
pub(crate) fn same_format(a: &QuantizedWeight, b: &QuantizedWeight) -> bool {
    (a.group_size(), a.bits(), a.mode()) == (b.group_size(), b.bits(), b.mode())
}

/// The format of packed weights with `inputs` columns, by the shapes of the weights and their
/// scales.
fn shown(path: &str, inputs: i32, weights: &Weights) -> Result<Quantization> {
    let (weight, scales) = (format!("{path}.weight"), format!("{path}.scales"));
    let columns = |name: &str| {
        let last = weights.shape(name).and_then(|(shape, _)| shape.last().copied());
        last.map(i64::from).filter(|&columns| columns > 0)
    };
    let bytes = weights.shape(&scales).is_some_and(|(_, dtype)| dtype == Dtype::Uint8);
    let inputs = i64::from(inputs);
    let format = match (columns(&weight), columns(&scales)) {
        (Some(words), Some(groups)) => (words * 32 / inputs, inputs / groups, bytes),
        _ => (0, 0, bytes),
    };
    let (bits, group_size) = (format.0 as i32, format.1 as i32);
    let of_bytes = || {
        QuantizedMode::ALL.into_iter().find(|mode| mode.only_layout() == Some((group_size, bits)))
    };
    match (format, of_bytes()) {
        ((.., true), Some(mode)) => Ok(Quantization { group_size, bits, mode }),
        ((2..=6 | 8, 32 | 64 | 128, false), _) => Ok(Quantization::affine(group_size, bits)),
        ((bits, group_size, _), _) => Err(weights.error(
            &weight,
            format_args!(
                "{weight} of 2, 3, 4, 5, 6 or 8 bits in groups of 32, 64 or 128, or of mxfp4, mxfp8 \
                 or nvfp4, got {bits} bits in groups of {group_size}"
            ),
        )),
    }
}
