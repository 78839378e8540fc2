//! The merges of SentencePiece's pairs.
//!
//! llama.cpp merges, of all neighboring symbols whose texts together are a token, the pair whose
//! token has the highest score, and of pairs with equal scores the first. Byte pairs do the same by
//! a list of merges in order: so that the list has to hold every division of every token into two
//! tokens, in the order of the tokens' scores. A division into other texts cannot occur, because
//! every symbol of more than one character is a token, and so is every character that a token is
//! made of; that last point holds for every vocabulary that SentencePiece trained. Tokens of equal
//! scores are the only difference: a list has an order, so the token with the lower number goes
//! first instead of the pair that comes first in the text.

use std::collections::HashMap;

use mlx_primitives::Result;

use super::keys::refused;

/// The most bytes of all divisions of all tokens: many times those of the largest vocabularies, and
/// few enough to be looked up in a second.
const MOST_BYTES: usize = 1 << 28;

/// The divisions of every token into two tokens, in the order in which they are merged.
pub(super) fn merges(texts: &[String], scores: &[f64]) -> Result<Vec<(String, String)>> {
    if scores.iter().any(|score| score.is_nan()) {
        return Err(refused("tokenizer.ggml.scores that are numbers, got NaN"));
    }
    let cost: usize = texts.iter().map(|text| text.len().saturating_mul(text.len())).sum();
    if cost > MOST_BYTES {
        let longest = texts.iter().map(String::len).max().unwrap_or(0);
        return Err(refused(format_args!(
            "tokens of a few characters, got one of {longest} bytes"
        )));
    }
    let ids: HashMap<&str, usize> =
        texts.iter().enumerate().map(|(id, text)| (text.as_str(), id)).collect();
    let mut order: Vec<usize> = (0..texts.len()).collect();
    // Stable, so that tokens of equal scores stay in the order of their numbers.
    order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
    let mut merges = Vec::new();
    for id in order {
        let text = texts[id].as_str();
        let divisions = text.char_indices().skip(1).map(|(at, _)| text.split_at(at));
        let known = |(left, right)| Some((*ids.get(left)?, *ids.get(right)?));
        let mut divided: Vec<(usize, usize)> = divisions.filter_map(known).collect();
        divided.sort_unstable();
        let named = |(left, right): (usize, usize)| (texts[left].clone(), texts[right].clone());
        merges.extend(divided.into_iter().map(named));
    }
    Ok(merges)
}
