//! Renders chat templates as the Python package transformers does.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use mlx_primitives::{Error, Result};

use super::jinja;

/// The format of a checkpoint's conversations: Jinja templates and the special tokens that they
/// use.
///
/// ```
/// use mlx_primitives_llama::{ChatOptions, ChatTemplate, message};
///
/// let turns = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{{ eos_token }}{% endfor %}";
/// let end = "{% if add_generation_prompt %}<|assistant|>{% endif %}";
/// let config = format!(r#"{{"eos_token": "</s>", "chat_template": "{turns}{end}"}}"#);
/// let template = ChatTemplate::parse(&config)?.expect("a template");
/// let messages = [message("system", "Be brief."), message("user", "Hi")];
/// let text = template.render(&messages, &ChatOptions::default())?;
/// assert_eq!(text, "<|system|>Be brief.</s><|user|>Hi</s><|assistant|>");
/// # Ok::<(), mlx_primitives::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct ChatTemplate {
    /// The templates by name. If a checkpoint has a single template, its name is `default`.
    pub(crate) templates: BTreeMap<String, String>,
    /// The special tokens by name, such as `bos_token`.
    pub(crate) special_tokens: Map<String, Value>,
}

/// The name of the template to render, and the template's variables, except the messages.
#[derive(Clone, Debug)]
pub struct ChatOptions {
    /// Whether the rendered text ends with the start of the model's answer.
    pub add_generation_prompt: bool,
    /// The functions that the model may call, as JSON schemas.
    pub tools: Option<Vec<Value>>,
    /// The name of the template. With `None`, the template is `tool_use` if there are tools and a
    /// template of that name, and `default` otherwise.
    pub template: Option<String>,
    /// Additional variables, such as `enable_thinking`.
    pub variables: Map<String, Value>,
}

impl Default for ChatOptions {
    /// Options for an answer of the model, without tools.
    fn default() -> Self {
        Self { add_generation_prompt: true, tools: None, template: None, variables: Map::new() }
    }
}

/// Makes a message in the form that templates expect: `{"role": ..., "content": ...}`.
pub fn message(role: &str, content: &str) -> Value {
    json!({"role": role, "content": content})
}

impl ChatTemplate {
    /// Reads the templates from the contents of a `tokenizer_config.json`. Its field
    /// `chat_template` is a string or a list of named templates. Returns `None` if there is no
    /// template.
    ///
    /// # Errors
    ///
    /// Returns an error if the contents are not JSON, or if `chat_template` is neither a string nor
    /// a list of named templates.
    pub fn parse(tokenizer_config: &str) -> Result<Option<Self>> {
        let (template, templates) = Self::parts(tokenizer_config)?;
        Ok((!templates.is_empty()).then_some(Self { templates, ..template }))
    }

    /// Reads the special tokens and the templates from the contents of a `tokenizer_config.json`.
    pub(crate) fn parts(tokenizer_config: &str) -> Result<(Self, BTreeMap<String, String>)> {
        let config: Value = serde_json::from_str(tokenizer_config)
            .map_err(|e| refused(format_args!("a JSON object, got {e}")))?;
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let mut templates = BTreeMap::new();
        match config.get("chat_template") {
            None | Some(Value::Null) => {}
            Some(Value::String(source)) => {
                templates.insert("default".to_owned(), source.clone());
            }
            Some(Value::Array(named)) => {
                for entry in named {
                    let part = |key: &str| entry.get(key).and_then(text);
                    let (Some(name), Some(source)) = (part("name"), part("template")) else {
                        return Err(refused(format_args!(
                            "chat templates with a name and a template, got {entry}"
                        )));
                    };
                    templates.insert(name, source);
                }
            }
            Some(other) => {
                return Err(refused(format_args!("chat_template of text or a list, got {other}")));
            }
        }
        let mut special_tokens = Map::new();
        for name in ["bos", "eos", "unk", "sep", "pad", "cls", "mask"] {
            let name = format!("{name}_token");
            let token = config.get(&name);
            let token = token.map(|token| token.get("content").unwrap_or(token)).and_then(text);
            if let Some(token) = token {
                special_tokens.insert(name, Value::String(token));
            }
        }
        Ok((Self { templates: BTreeMap::new(), special_tokens }, templates))
    }

    /// A special token by its name in `tokenizer_config.json`, such as `eos_token`.
    pub fn special_token(&self, name: &str) -> Option<&str> {
        self.special_tokens.get(name)?.as_str()
    }

    /// Renders a conversation as text.
    /// [`Tokenizer::encode_verbatim`](crate::Tokenizer::encode_verbatim) encodes it without further
    /// special tokens.
    ///
    /// # Errors
    ///
    /// Returns an error for messages that are not objects. It is also an error if the template is
    /// missing or faulty, raises an exception, uses half a second of processor time, or needs more
    /// memory than 48 MiB plus four times the size of its input.
    pub fn render(&self, messages: &[Value], options: &ChatOptions) -> Result<String> {
        if let Some(other) = messages.iter().find(|message| !message.is_object()) {
            return Err(refused(format_args!("messages that are objects, got {other}")));
        }
        let source = self.source(options)?;
        let mut context = self.special_tokens.clone();
        context.extend(options.variables.clone());
        let messages: Vec<Value> = messages.iter().map(with_reasoning).collect();
        context.insert("messages".to_owned(), Value::Array(messages));
        context.insert("tools".to_owned(), options.tools.clone().map_or(Value::Null, Value::Array));
        context.insert("documents".to_owned(), Value::Null);
        context
            .insert("add_generation_prompt".to_owned(), Value::Bool(options.add_generation_prompt));
        jinja::render(source, &context).map_err(|reason| {
            refused(format_args!("a template that can be rendered, got {reason}"))
        })
    }

    fn source(&self, options: &ChatOptions) -> Result<&str> {
        let tool_use = || match options.tools {
            Some(_) => self.templates.get("tool_use"),
            None => None,
        };
        let source = match &options.template {
            Some(name) => self.templates.get(name),
            None => tool_use().or_else(|| self.templates.get("default")),
        };
        source.map(String::as_str).ok_or_else(|| {
            let names: Vec<&str> = self.templates.keys().map(String::as_str).collect();
            let asked = options.template.as_deref().unwrap_or("default");
            refused(format_args!("one of the templates {names:?}, got {asked:?}"))
        })
    }
}

/// Copies the reasoning of a message to `thinking` and `reasoning_content`, since a template may
/// read either field.
fn with_reasoning(message: &Value) -> Value {
    let names = ["reasoning_content", "thinking", "reasoning"];
    let given = |name: &&str| message.get(name).is_some_and(|value| !value.is_null());
    let (Some(name), Some(fields)) = (names.into_iter().find(given), message.as_object()) else {
        return message.clone();
    };
    let thought = message.get(name).cloned().unwrap_or_default();
    let mut all = Map::new();
    all.insert("thinking".to_owned(), thought.clone());
    all.extend(fields.clone());
    all.insert("reasoning_content".to_owned(), thought);
    Value::Object(all)
}

fn refused(expected: std::fmt::Arguments) -> Error {
    Error::argument("chat_template", expected)
}
