//! Parses the names of models on the hub, and chooses the files of a repository to download.

use std::collections::BTreeSet;
use std::path::{Component, Path};

/// The name `org/name` of a repository, with a revision and, optionally, the path of a GGUF file in
/// the repository.
#[derive(Debug)]
pub(super) struct Name {
    pub repository: String,
    pub revision: String,
    pub file: Option<String>,
}

/// Files that a model can need in addition to its weights.
const SMALL: [&str; 10] = [
    "adapter_config.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "config.json",
    "generation_config.json",
    "model.safetensors.index.json",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer_config.json",
];
/// The weights of adapters.
const ADAPTERS: [&str; 2] = ["adapters.safetensors", "adapter_model.safetensors"];

/// Whether a string is safe as a component of a path or URL, so that it cannot lead to another
/// folder.
pub(super) fn is_plain(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    !text.is_empty()
        && text.len() <= 200
        && !text.starts_with(['.', '-'])
        && text.bytes().all(plain)
}

impl Name {
    /// Parses a path as a name; `None` if it does not have the form of a name.
    pub(super) fn of(path: &Path) -> Option<Self> {
        if !path.components().all(|part| matches!(part, Component::Normal(_))) {
            return None;
        }
        let text = path.to_str()?;
        let (text, revision) = text.split_once('@').unwrap_or((text, "main"));
        let parts: Vec<&str> = text.split('/').collect();
        let [org, name, file @ ..] = &parts[..] else { return None };
        if !parts.iter().copied().chain(revision.split('/')).all(is_plain) {
            return None;
        }
        let file = (!file.is_empty()).then(|| file.join("/"));
        if file.as_ref().is_some_and(|file| !is_gguf(file)) {
            return None;
        }
        Some(Self { repository: format!("{org}/{name}"), revision: revision.to_owned(), file })
    }

    /// Returns the name of the repository's folder in the cache.
    pub(super) fn folder(&self) -> String {
        format!("models--{}", self.repository.replace('/', "--"))
    }

    /// Returns the files of the repository to download, with the small files first.
    ///
    /// # Errors
    ///
    /// Returns an error if no file has weights that this crate reads, or if there are several GGUF
    /// files and the name does not choose one.
    pub(super) fn wanted(&self, files: &BTreeSet<String>) -> Result<Vec<String>, String> {
        let repository = &self.repository;
        let templates =
            |file: &str| file.starts_with("additional_chat_templates/") && file.ends_with(".jinja");
        let small = |file: &&String| SMALL.contains(&file.as_str()) || templates(file);
        let mut wanted: Vec<String> = files.iter().filter(small).cloned().collect();
        let weights: Vec<String> = match &self.file {
            Some(file) => parts_of(file, files),
            None => files.iter().filter(|file| is_weights(file)).cloned().collect(),
        };
        if !weights.is_empty() {
            wanted.extend(weights);
            return Ok(wanted);
        }
        let ggufs: Vec<&String> = files.iter().filter(|file| is_gguf(file)).collect();
        let list = ggufs.iter().take(8).map(|file| file.as_str()).collect::<Vec<_>>().join(", ");
        if let Some(file) = &self.file {
            let has = if list.is_empty() { "no GGUF file" } else { &list };
            return Err(format!("{repository} has no {file}, it has {has}"));
        }
        if let Some(first) = ggufs.first() {
            let parts = parts_of(first, files);
            if parts.len() < ggufs.len() {
                return Err(format!(
                    "{repository} has several GGUF files: give one, as {repository}/{first}, of {list}"
                ));
            }
            wanted.extend(parts);
            return Ok(wanted);
        }
        let other = files.iter().find(|file| file.ends_with(".bin") || file.ends_with(".pth"));
        Err(match other {
            Some(other) => format!(
                "{repository} has its weights in {other} and not in safetensors, the format that \
                 runs no code: use a converted repository"
            ),
            None => format!("{repository} has no weights in safetensors or GGUF"),
        })
    }
}

pub(super) fn is_gguf(file: &str) -> bool {
    file.to_ascii_lowercase().ends_with(".gguf")
}

/// Whether the loader reads a file with this name as the weights of a model or of an adapter.
fn is_weights(file: &str) -> bool {
    let model = file.starts_with("model") && file.ends_with(".safetensors") && !file.contains('/');
    model || ADAPTERS.contains(&file)
}

/// Returns the names of all parts of a split GGUF file, such as `x-00001-of-00003.gguf`. For
/// another file, returns only its name.
pub(super) fn all_parts(file: &str) -> Vec<String> {
    let split = || {
        let (rest, end) = file.rsplit_once("-of-")?;
        let (stem, number) = rest.rsplit_once('-')?;
        let (count, _) = end.split_at_checked(5)?;
        let five = |text: &str| text.len() == 5 && text.bytes().all(|b| b.is_ascii_digit());
        let value = |text: &str| five(text).then(|| text.parse::<u32>().ok())?;
        let (number, count) = (value(number)?, value(count)?);
        let name = |part: u32| format!("{stem}-{part:05}-of-{end}");
        (1..=count).contains(&number).then(|| (1..=count).map(name).collect())
    };
    split().unwrap_or_else(|| vec![file.to_owned()])
}

/// Returns the names in [`all_parts`] that are also in `files`.
fn parts_of(file: &str, files: &BTreeSet<String>) -> Vec<String> {
    all_parts(file).into_iter().filter(|part| files.contains(part)).collect()
}
