use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use mlx_primitives::support::files;
use mlx_primitives::{Error, Result};

use super::gguf;
use crate::text::{ChatTemplate, SpecialTokens};

impl ChatTemplate {
    /// Loads the chat templates of a checkpoint. In a directory, they are `chat_template.jinja` and
    /// the files in `additional_chat_templates`. If there are no such files, they are the templates
    /// in `tokenizer_config.json`. For a `.gguf` file, the function looks for these files in the
    /// folder of the GGUF file. If they contain no template, it loads the templates in the GGUF
    /// file. Returns `None` if there is no template.
    ///
    /// # Errors
    ///
    /// Returns an error if a file cannot be read or is malformed. The error names the file.
    pub fn load(path: impl AsRef<Path>) -> Result<Option<Self>> {
        let path = path.as_ref();
        let beside = Self::beside(gguf::folder(path))?;
        if !gguf::is_gguf(path) {
            return Ok((!beside.templates.is_empty()).then_some(beside));
        }
        let config = gguf::tokenizer_config(path)?.to_string();
        let (mut own, templates) =
            Self::parts(&config).map_err(|error| Error::file(path, error))?;
        own.special_tokens.extend(beside.special_tokens);
        own.templates = if beside.templates.is_empty() { templates } else { beside.templates };
        Ok((!own.templates.is_empty()).then_some(own))
    }

    /// Loads the templates and the special tokens from the files of a directory.
    fn beside(directory: &Path) -> Result<Self> {
        let path = directory.join("tokenizer_config.json");
        let config = files::read_if_present(&path)?.unwrap_or_else(|| "{}".to_owned());
        let (mut template, from_config) =
            Self::parts(&config).map_err(|error| Error::file(&path, error))?;
        let mut templates = BTreeMap::new();
        let own = files::read_if_present(&directory.join("chat_template.jinja"))?;
        templates.extend(own.map(|source| ("default".to_owned(), source)));
        if let Ok(entries) = fs::read_dir(directory.join("additional_chat_templates")) {
            for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
                let stem = path.file_stem().and_then(|stem| stem.to_str());
                if let (Some(stem), Some("jinja")) =
                    (stem, path.extension().and_then(|e| e.to_str()))
                {
                    templates.insert(stem.to_owned(), files::read_to_string(&path)?);
                }
            }
        }
        template.templates = if templates.is_empty() { from_config } else { templates };
        template.special_tokens = SpecialTokens::load(directory)?.of_templates();
        Ok(template)
    }
}
