//! Loads matrices of checkpoints, which are plain floats or packed (quantized).

use mlx_primitives::ops::{LinearWeight, QuantizedMode, QuantizedWeight};
use mlx_primitives::support::Block;
use mlx_primitives::{Dtype, Error, Result};

use crate::base::{Config, Quantization, Weights};

/// Loads the matrix at `path`, in the format that the configuration gives for its name. If the
/// configuration has a quantization but no entry for this name, a matrix without scales is plain,
/// and the format of a matrix with scales is derived from the shapes of the weight and the scales.
pub(crate) fn load(
    path: &str,
    [outputs, inputs]: [i32; 2],
    config: &Config,
    weights: &mut Weights,
) -> Result<LinearWeight> {
    let own = weights.share().rows(path, outputs);
    if let Some(source) = weights.source() {
        let rows = source.matrix([outputs, inputs], own, config.quantization_of(path)?)?;
        return Ok(rows);
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
        return Ok(weights.take_rows(&weight, &[outputs, inputs], &own)?.into());
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
    let mut matrix = matrix
        .map_err(|e| weights.error(&weight, format_args!("{weight} to be quantized: {e}")))?;
    if weights.is_centered(&name("biases")) {
        matrix = matrix.with_centered_codes();
    }
    if [matrix.outputs(), matrix.inputs()] != [outputs, inputs] {
        let got = [matrix.outputs(), matrix.inputs()];
        let expected = format_args!("{weight} of shape [{outputs}, {inputs}], got {got:?}");
        return Err(weights.error(&weight, expected));
    }
    LinearWeight::Quantized(matrix).map_arrays(|array| weights.converted_rows(array, &own))
}

/// Copies the matrix into a separate memory block. If no block can be allocated, returns the matrix
/// itself.
pub(super) fn placed(matrix: &LinearWeight) -> Result<LinearWeight> {
    match Block::with_room_for(Block::bytes_of(matrix.arrays()))? {
        Some(mut block) => placed_in(&mut block, matrix),
        None => Ok(matrix.clone()),
    }
}

/// Copies the matrix into the block.
pub(super) fn placed_in(block: &mut Block, matrix: &LinearWeight) -> Result<LinearWeight> {
    let mut placed = block.place(&matrix.arrays().collect::<Vec<_>>())?.into_iter();
    matrix.map_arrays(|_| {
        placed.next().ok_or_else(|| Error::argument("block", "a place for each array"))
    })
}

/// Packs the matrix if it is not packed yet and its rows have a length that the format allows
/// ([`Quantization::divides`]). Otherwise returns it unchanged.
pub(super) fn quantized(matrix: &LinearWeight, to: Quantization) -> Result<LinearWeight> {
    match matrix {
        LinearWeight::Plain(rows) if to.divides(rows.dim(-1)?) => {
            let Quantization { group_size, bits, mode } = to;
            Ok(QuantizedWeight::quantize(rows, group_size, bits, mode)?.into())
        }
        other => Ok(other.clone()),
    }
}

/// Derives the format of a matrix in K-quants from the number of 32-bit words of a row, and from
/// the number and the type of the row's scales. Returns `None` if the scales are not K-quants'
/// scales.
pub(crate) fn of_k_quants(words: i32, scales: i32, dtype: Dtype) -> Option<Quantization> {
    let (bits_of_row, blocks) = (i64::from(words) * 32, i64::from(scales) / 20);
    let bits = bits_of_row.checked_div(blocks * 256)? as i32;
    let fits = i64::from(scales) == blocks * 20 && bits_of_row == blocks * 256 * i64::from(bits);
    let group_size = if bits == 6 { 16 } else { 32 };
    let known = dtype == Dtype::Uint8 && fits && (4..=6).contains(&bits);
    known.then_some(Quantization { group_size, bits, mode: QuantizedMode::KQuant })
}

/// Derives the format of packed weights with `inputs` columns from the shapes of the weights and of
/// their scales.
fn shown(path: &str, inputs: i32, weights: &Weights) -> Result<Quantization> {
    let (weight, scales) = (format!("{path}.weight"), format!("{path}.scales"));
    let columns = |name: &str| {
        let last = weights.shape(name).and_then(|(shape, _)| shape.last().copied());
        last.map(i64::from).filter(|&columns| columns > 0)
    };
    let bytes = weights.shape(&scales).is_some_and(|(_, dtype)| dtype == Dtype::Uint8);
    let inputs = i64::from(inputs);
    let k_quants = || {
        let ((weight, _), (scales, dtype)) = (weights.shape(&weight)?, weights.shape(&scales)?);
        let words = *weight.last()?;
        let found = of_k_quants(words, *scales.last()?, dtype)?;
        (i64::from(found.bits) * inputs == i64::from(words) * 32).then_some(found)
    };
    if let Some(found) = k_quants() {
        return Ok(found);
    }
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
