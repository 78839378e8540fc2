//! Finds special tokens in the files beside a `tokenizer.json`, as transformers does. These files
//! are `tokenizer_config.json`, `special_tokens_map.json` and `added_tokens.json`.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;

use serde_json::{Map, Value};
use tokenizers::AddedToken;

use mlx_primitives::support::files;
use mlx_primitives::{Error, Result};

/// The names of special tokens that every tokenizer may have.
const NAMES: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// The special tokens of a checkpoint, and other tokens that its tokenizer must have.
#[derive(Default)]
pub(crate) struct SpecialTokens {
    /// Special tokens by names such as `eos_token`.
    named: Vec<(String, AddedToken)>,
    /// Special tokens without a name.
    others: Vec<AddedToken>,
    /// Tokens by their IDs.
    numbered: BTreeMap<u32, AddedToken>,
}

impl SpecialTokens {
    /// Reads the files that exist in the directory.
    pub fn load(directory: &Path) -> Result<Self> {
        let mut tokens = Self::default();
        let mut config = object(&directory.join("tokenizer_config.json"))?;
        let decoder = config.remove("added_tokens_decoder").filter(|value| !value.is_null());
        if let Some(decoder) = decoder {
            let path = directory.join("tokenizer_config.json");
            tokens.read(config, &path)?;
            let Value::Object(decoder) = decoder else {
                return Err(Error::file(path, "expected added_tokens_decoder to be an object"));
            };
            for (number, token) in &decoder {
                match (number.parse(), added(token)) {
                    (Ok(number), Some(token)) => drop(tokens.numbered.insert(number, token)),
                    _ => {
                        let reason = format!(
                            "expected numbers with tokens in added_tokens_decoder, got {number:?}: \
                             {token}"
                        );
                        return Err(Error::file(path, reason));
                    }
                }
            }
            return Ok(tokens);
        }
        // Older tokenizers have separate files for these tokens. transformers reads these files
        // only if `tokenizer_config.json` has no `added_tokens_decoder`.
        let path = directory.join("special_tokens_map.json");
        for (name, value) in object(&path)? {
            config.insert(name, value);
        }
        tokens.read(config, &path)?;
        let path = directory.join("added_tokens.json");
        for (content, number) in object(&path)? {
            let number = number.as_u64().and_then(|number| u32::try_from(number).ok());
            let Some(number) = number else {
                let reason = format!("expected a number for the token {content:?}");
                return Err(Error::file(path, reason));
            };
            let special = tokens.special().any(|token| token.content == content);
            tokens.numbered.insert(number, AddedToken::from(content, special));
        }
        Ok(tokens)
    }

    fn read(&mut self, config: Map<String, Value>, path: &Path) -> Result<()> {
        let refused = |name: &str, value: &Value| {
            Error::file(path, format_args!("expected {name} to name tokens, got {value}"))
        };
        let has_extra = config.get("extra_special_tokens").is_some_and(|value| !value.is_null());
        for (name, value) in config {
            let others = match &*name {
                "extra_special_tokens" => true,
                "additional_special_tokens" => !has_extra,
                _ => false,
            };
            match value {
                Value::Null => {}
                Value::Array(tokens) if others => {
                    for token in tokens {
                        self.others.push(special(&token).ok_or_else(|| refused(&name, &token))?);
                    }
                }
                Value::Object(tokens) if others => {
                    for (name, token) in tokens {
                        let token = special(&token).ok_or_else(|| refused(&name, &token))?;
                        self.named.push((name, token));
                    }
                }
                value if others => return Err(refused(&name, &value)),
                value if NAMES.contains(&&*name) => {
                    let token = special(&value).ok_or_else(|| refused(&name, &value))?;
                    self.named.push((name, token));
                }
                Value::String(content) if name.ends_with("_token") => {
                    self.named.push((name, AddedToken::from(content, true)));
                }
                _ => {}
            }
        }
        // transformers assigns IDs to new tokens in this order.
        let order =
            |name: &str| NAMES.iter().position(|known| *known == name).unwrap_or(NAMES.len());
        self.named.sort_by_key(|(name, _)| order(name));
        Ok(())
    }

    fn special(&self) -> impl Iterator<Item = &AddedToken> {
        self.named.iter().map(|(_, token)| token).chain(&self.others)
    }

    /// Returns the text of the special token with this name, such as `eos_token`.
    pub fn named(&self, name: &str) -> Option<&str> {
        self.named.iter().find(|(known, _)| known == name).map(|(_, token)| &*token.content)
    }

    /// Returns the names and texts of the special tokens that chat templates may use.
    pub fn of_templates(&self) -> Map<String, Value> {
        let known = self.named.iter().filter(|(name, _)| NAMES.contains(&&**name));
        known.map(|(name, token)| (name.clone(), Value::from(token.content.clone()))).collect()
    }

    /// Adds the tokens that a tokenizer does not have. Returns an error if a token has different
    /// IDs in the tokenizer and in the files.
    ///
    /// A token without an ID in the files gets the next free ID. If this ID is `rows` or more, the
    /// token is not added, because the model's embedding has only `rows` rows.
    pub fn add_to(
        &self,
        tokenizer: &mut tokenizers::Tokenizer,
        rows: Option<u32>,
    ) -> Result<(), String> {
        let mut seen: HashSet<&str> = HashSet::new();
        let known: HashSet<String> =
            tokenizer.get_added_vocabulary().get_vocab().keys().cloned().collect();
        let mut added = Vec::new();
        for token in self.numbered.values().chain(self.special()) {
            if !token.content.is_empty()
                && !known.contains(&token.content)
                && seen.insert(&token.content)
            {
                let named = self.named.iter().any(|(_, other)| other.content == token.content);
                added.push(AddedToken { special: token.special || named, ..token.clone() });
            }
        }
        if let Some(rows) = rows.filter(|_| !added.is_empty()) {
            let numbered: HashSet<&str> =
                self.numbered.values().map(|token| &*token.content).collect();
            let mut next = tokenizer.get_vocab(true).into_values().max().map_or(0, |last| last + 1);
            added.retain(|token| {
                let known = tokenizer.token_to_id(&token.content).is_some();
                let kept = known || numbered.contains(&*token.content) || next < rows;
                next += u32::from(kept && !known);
                kept
            });
        }
        if !added.is_empty() {
            tokenizer.add_tokens(&added);
        }
        for (number, token) in &self.numbered {
            let has = tokenizer.token_to_id(&token.content);
            if !token.content.is_empty() && has != Some(*number) {
                let content = &token.content;
                let has = has.map_or("no number".to_owned(), |has| has.to_string());
                return Err(format!(
                    "the number {number} for the token {content:?}, which has {has} in tokenizer.json"
                ));
            }
        }
        Ok(())
    }
}

/// Reads the object in a JSON file. Returns an empty object if the file does not exist.
fn object(path: &Path) -> Result<Map<String, Value>> {
    let Some(json) = files::read_if_present(path)? else { return Ok(Map::new()) };
    match serde_json::from_str(&json) {
        Ok(Value::Object(fields)) => Ok(fields),
        Ok(_) => Err(Error::file(path, "expected a JSON object, got another value")),
        Err(error) => Err(Error::file(path, format_args!("expected a JSON object, got {error}"))),
    }
}

/// Reads a token and its flags from an object in a file.
fn added(value: &Value) -> Option<AddedToken> {
    let flag = |name: &str| value.get(name).and_then(Value::as_bool);
    let content = value.get("content")?.as_str()?.to_owned();
    let special = flag("special").unwrap_or(false);
    Some(AddedToken {
        single_word: flag("single_word").unwrap_or(false),
        lstrip: flag("lstrip").unwrap_or(false),
        rstrip: flag("rstrip").unwrap_or(false),
        normalized: flag("normalized").unwrap_or(!special),
        content,
        special,
    })
}

/// Reads a special token, which is a string or an object with flags.
fn special(value: &Value) -> Option<AddedToken> {
    match value {
        Value::String(content) => Some(AddedToken::from(content.clone(), true)),
        other => added(other).map(|token| AddedToken { special: true, ..token }),
    }
}
