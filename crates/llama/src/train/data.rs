use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use serde_json::{Map, Value};

use mlx_primitives::support::{Fnv, files};
use mlx_primitives::{Array, Error, Result};

use crate::base::{parse_object, short};
use crate::files::Checkpoint;
use crate::text::{ChatOptions, ChatTemplate, message};

/// A line must have fewer bytes than `LINE`. `TOKENS` and `BATCH` are the maximum numbers of tokens
/// in a file and in a batch.
const LINE: u64 = 1 << 24;
const TOKENS: usize = 1 << 30;
const BATCH: usize = 1 << 28;

/// Rows are padded so that the number of columns of a [`Batch`] is a multiple of this number,
/// unless rows are cut to a maximum length. A row has one more token than its batch has columns.
const PAD: usize = 32;

/// The tokens of a text. The tokens before `from` are not targets of the loss.
struct Example {
    tokens: Vec<u32>,
    from: usize,
}

/// The tokens of the texts in a JSONL file. Texts with fewer tokens come first.
pub struct Dataset {
    examples: Vec<Example>,
    hash: u64,
}

/// Rows of tokens with equal lengths, and for each token the next token as its target.
pub struct Batch {
    /// uint32 `[rows, length]`.
    pub inputs: Array,
    /// int32 `[rows, length]`. An element is -1 if the next token is not a target.
    pub targets: Array,
    /// The number of targets.
    pub tokens: usize,
    /// Whether a text was cut because it has more tokens than a row may have.
    pub truncated: bool,
}

impl Dataset {
    /// Reads a file with a JSON object in each line. All objects have the layout of the first one:
    ///
    /// - `{"text": …}`: the text, followed by the end token;
    /// - `{"prompt": …, "completion": …}`: a user message and an assistant message, rendered by the
    ///   chat template. Without a chat template, the prompt, the completion and the end token are
    ///   concatenated;
    /// - `{"messages": […], "tools": […]}`: a conversation, rendered by the chat template.
    ///
    /// With `mask_prompt`, only the completion or the last message counts in the loss.
    ///
    /// # Errors
    ///
    /// Returns an error if a line is not such an object, has 16 MiB or more, cannot be rendered, or
    /// has no tokens or tokens outside the vocabulary. The error names the file and the line. It is
    /// also an error if there are messages but no chat template, if an object has `text` and
    /// `mask_prompt` is set, or if the file has more than 2^30 tokens.
    pub fn load(
        path: &Path,
        checkpoint: &Checkpoint,
        template: Option<&ChatTemplate>,
        mask_prompt: bool,
    ) -> Result<Self> {
        let mut file = BufReader::new(files::open(path).map_err(|e| Error::io(path, e))?);
        let reader = Reader { checkpoint, template, mask_prompt };
        let (mut examples, mut layout, mut all) = (Vec::new(), None, 0);
        let (mut line, mut hash) = (String::new(), Fnv::default());
        for number in 1.. {
            let refuse = |reason: &dyn std::fmt::Display| {
                Error::file(path, format_args!("line {number}: {reason}"))
            };
            line.clear();
            if (&mut file).take(LINE).read_line(&mut line).map_err(|e| refuse(&e))? == 0 {
                break;
            }
            if line.len() as u64 == LINE {
                return Err(refuse(&"expected a line of less than 16 MiB"));
            }
            let object = parse_object(line.trim_end()).map_err(|e| refuse(&e))?;
            let layout = *layout.get_or_insert_with(|| Layout::of(&object));
            let example = reader.example(layout, &object).map_err(|e| refuse(&e))?;
            hash.add(format!("{} {:?}", example.from, example.tokens).as_bytes());
            all += example.tokens.len();
            if all > TOKENS {
                return Err(refuse(&"expected a file of at most 2^30 tokens"));
            }
            examples.push(example);
        }
        examples.sort_by_key(|example| example.tokens.len());
        Ok(Self { examples, hash: hash.0 })
    }

    /// The number of texts.
    pub fn len(&self) -> usize {
        self.examples.len()
    }

    /// Whether there are no texts.
    pub fn is_empty(&self) -> bool {
        self.examples.is_empty()
    }

    /// A hash of the tokens of all texts, and of the position of each text's first target.
    pub(super) fn hash(&self) -> u64 {
        self.hash
    }

    /// Returns the order of the batches of `rows` texts in a pass over the data, as a permutation
    /// of the batch numbers. If the last batch is not full, its texts are not used.
    pub fn order(&self, rows: usize, seed: u64, pass: u64) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.len() / rows.max(1)).collect();
        // SplitMix64 and a Fisher-Yates shuffle. The order depends only on the seed and the number
        // of the pass, so a resumed run has the same order as an uninterrupted run.
        let mut state = seed.wrapping_add(pass.wrapping_mul(0xd134_2543_de82_ef95));
        for last in (1..order.len()).rev() {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut bits = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            order.swap(last, ((bits ^ (bits >> 31)) % (last as u64 + 1)) as usize);
        }
        order
    }

    /// The maximum number of columns of a batch of `rows` texts, if each text is cut to `longest`
    /// tokens.
    pub fn columns(&self, rows: usize, longest: usize) -> usize {
        let whole = self.examples.len() / rows.max(1) * rows;
        let most = whole.checked_sub(1).and_then(|last| self.examples.get(last));
        padded(most.map_or(0, |example| example.tokens.len())).min(longest).saturating_sub(1)
    }

    /// Makes the batch `number`. The texts, ordered by length, are divided into batches of `rows`
    /// texts. Each text is cut to `longest` tokens and padded with the token 0. As in mlx-lm, the
    /// first 0 of the padding is a target.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no such batch, if `longest` is below 2, and for more than 2^28
    /// tokens.
    pub fn batch(&self, number: usize, rows: usize, longest: usize) -> Result<Batch> {
        let start = number.saturating_mul(rows);
        let examples = self.examples.get(start..start.saturating_add(rows)).unwrap_or_default();
        let most = examples.last().map_or(0, |example| example.tokens.len());
        let length = padded(most).min(longest);
        if examples.is_empty() || length < 2 {
            return Err(Error::argument("dataset", "a batch of texts of at least 2 tokens"));
        }
        if rows.saturating_mul(length) > BATCH {
            let got = format_args!("at most 2^28 tokens in a batch, got {rows} rows of {length}");
            return Err(Error::argument("dataset", got));
        }
        let (mut inputs, mut targets) = (Vec::new(), Vec::new());
        for Example { tokens, from } in examples {
            let token = |at: usize| tokens.get(at).copied().unwrap_or(0);
            inputs.extend((0..length - 1).map(token));
            let targeted = |at: &usize| (*from..=tokens.len()).contains(at);
            let target = |at: usize| if targeted(&at) { token(at) as i32 } else { -1 };
            targets.extend((1..length).map(target));
        }
        let shape = [rows as i32, length as i32 - 1];
        Ok(Batch {
            tokens: targets.iter().filter(|&&target| target >= 0).count(),
            inputs: Array::from_slice(&inputs, shape)?,
            targets: Array::from_slice(&targets, shape)?,
            truncated: most > longest,
        })
    }
}

/// Returns the length of the rows in a batch whose longest text has `tokens` tokens.
fn padded(tokens: usize) -> usize {
    1 + tokens.div_ceil(PAD) * PAD
}

#[derive(Clone, Copy)]
enum Layout {
    Completion,
    Messages,
    Text,
}

impl Layout {
    fn of(object: &Map<String, Value>) -> Self {
        let has = |key| object.contains_key(key);
        match () {
            () if has("prompt") && has("completion") => Self::Completion,
            () if has("messages") => Self::Messages,
            () => Self::Text,
        }
    }
}

struct Reader<'a> {
    checkpoint: &'a Checkpoint,
    template: Option<&'a ChatTemplate>,
    mask_prompt: bool,
}

impl Reader<'_> {
    fn example(&self, layout: Layout, object: &Map<String, Value>) -> Result<Example> {
        let tokenizer = &self.checkpoint.tokenizer;
        let refuse = |expected: &str, got: &Value| {
            Err(Error::argument("data", format_args!("{expected}, got {}", short(got))))
        };
        let text = |key: &str| match object.get(key) {
            Some(Value::String(text)) => Ok(text),
            other => {
                let got = other.map_or_else(|| short(&Value::Object(object.clone())), short);
                let kinds = "text, or prompt and completion, or messages, as in the first line";
                let expected = format_args!("a string {key:?} ({kinds}), got {got}");
                Err(Error::argument("data", expected))
            }
        };
        let example = match layout {
            Layout::Text if self.mask_prompt => {
                return refuse("prompts to mask", &Value::String("text".to_owned()));
            }
            Layout::Text => {
                let tokens = self.ended(tokenizer.encode(text("text")?)?);
                Example { tokens, from: 0 }
            }
            Layout::Completion => {
                let (prompt, completion) = (text("prompt")?, text("completion")?);
                let messages = [message("user", prompt), message("assistant", completion)];
                match self.template {
                    Some(template) => self.rendered(template, &messages, object, true)?,
                    None => {
                        let mut tokens = tokenizer.encode(prompt)?;
                        let from = tokens.len();
                        tokens.extend(tokenizer.encode_verbatim(completion)?);
                        Example { tokens: self.ended(tokens), from }
                    }
                }
            }
            Layout::Messages => {
                let messages = object.get("messages").unwrap_or(&Value::Null);
                let role = |message: &Value| message.get("role").is_some_and(Value::is_string);
                match (messages.as_array(), self.template) {
                    (Some(all), Some(template)) if !all.is_empty() && all.iter().all(role) => {
                        let answer = all.last().is_some_and(|last| last["role"] == "assistant");
                        self.rendered(template, all, object, answer)?
                    }
                    (_, None) => {
                        return refuse("a model with a chat template for messages", messages);
                    }
                    _ => return refuse("a list of messages, each with a role", messages),
                }
            }
        };
        let known = self.checkpoint.llama.vocab();
        match example.tokens.iter().find(|&&token| token as usize >= known) {
            _ if example.tokens.is_empty() => refuse("a text of at least one token", &"".into()),
            Some(&token) => refuse("tokens of the model's vocabulary", &token.into()),
            None if self.mask_prompt => Ok(example),
            None => Ok(Example { from: 0, ..example }),
        }
    }

    /// Appends the end token, unless it is already the last token.
    fn ended(&self, mut tokens: Vec<u32>) -> Vec<u32> {
        let end = self.checkpoint.tokenizer.eos().or(self.checkpoint.eos.first().copied());
        tokens.extend(end.filter(|end| tokens.last() != Some(end)));
        tokens
    }

    /// Renders and encodes a conversation. With `mask_prompt`, only the last message counts in the
    /// loss.
    fn rendered(
        &self,
        template: &ChatTemplate,
        messages: &[Value],
        object: &Map<String, Value>,
        answer: bool,
    ) -> Result<Example> {
        let tools = match object.get("tools") {
            None | Some(Value::Null) => None,
            Some(Value::Array(tools)) => Some(tools.clone()),
            Some(other) => {
                let got = short(other);
                return Err(Error::argument("data", format_args!("a list of tools, got {got}")));
            }
        };
        let tokens = |messages: &[Value], add_generation_prompt: bool| {
            let tools = tools.clone();
            let options = ChatOptions { add_generation_prompt, tools, ..Default::default() };
            self.checkpoint.tokenizer.encode_verbatim(&template.render(messages, &options)?)
        };
        let from = match messages.split_last() {
            Some((_, before)) if self.mask_prompt => tokens(before, answer)?.len(),
            _ => 0,
        };
        Ok(Example { tokens: tokens(messages, false)?, from })
    }
}
