//! The pre-tokenizers of byte-pair vocabularies. A pre-tokenizer splits a text into pieces before
//! the bytes of each piece are merged. The entry `tokenizer.ggml.pre` names the pre-tokenizer. A
//! pre-tokenizer is a list of regular expressions from a model's original tokenizer, which are
//! applied one after the other. The text between two matches is a piece too.

use mlx_primitives::Result;
use mlx_primitives::io::gguf::brief;

use super::keys::refused;

/// A list of patterns that split a text into pieces.
pub(super) struct PreTokenizer {
    /// Regular expressions. Each one splits the pieces that the previous one made.
    pub patterns: Vec<&'static str>,
    /// Whether a piece that equals a token becomes this token without any merges.
    pub ignore_merges: bool,
}

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Like [`QWEN2`], but combining marks count as letters.
const QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

const SEED_CODER: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+";

const BAILING: &str = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+";

const MINICPM5: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Matches a word up to the next space or one of these punctuation marks.
const BLOOM: &str = r" ?[^(\s|.,!?…。，、।۔،)]+";

/// Matches a word in an alphabet that has upper and lower case.
const CASED: &str = r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+";

const CJK: &str = "[一-龥ࠀ-一가-\u{d7ff}]+";

const PUNCTUATION: &str = r"\s?[!-/:-~！-／：-～‘-‟\u{3000}-。]+";

const KANA: &str = "[一-龥\u{3040}-ゟ゠-ヿ]+";

const DEEPSEEK3: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##;

/// Returns the pre-tokenizer with this name. Without a name, returns llama.cpp's default.
pub(super) fn by_name(name: Option<&str>) -> Result<PreTokenizer> {
    let (patterns, ignore_merges) = match name.unwrap_or("default") {
        "default" => (vec![r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"], false),
        "llama3" | "llama-v3" | "llama-bpe" | "falcon3" | "falcon-h1" | "pixtral" | "midm-2.0"
        | "lfm2" | "glm4" | "glm5" => (vec![LLAMA3], true),
        "dbrx" | "smaug-bpe" | "chatglm-bpe" => (vec![LLAMA3], false),
        "qwen2" | "deepseek-r1-qwen" | "kormo" | "f2llmv2" | "megrez" | "stablelm2" | "hunyuan"
        | "solar-open" | "grok-2" => (vec![QWEN2], false),
        "qwen35" => (vec![QWEN35], false),
        "gpt-2" | "phi-2" | "gigachat" | "a.x-4.0" | "mellum" | "exaone4" | "mpt" | "olmo"
        | "jais" | "trillion" | "granite-docling" => (vec![GPT2], false),
        "starcoder" | "refact" | "command-r" | "smollm" | "codeshell" | "exaone" | "minerva-7b"
        | "mellum2" => (vec![r"\p{N}", GPT2], false),
        "falcon" => (vec![r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]"], false),
        "deepseek-llm" => (vec![r"[\r\n]", CASED, PUNCTUATION, r"\s+$", CJK, r"\p{N}+"], false),
        "deepseek-coder" => (vec![r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", CJK, r"\p{N}"], false),
        "deepseek-v3" | "hunyuan-dense" | "joyai-llm" => {
            (vec![r"\p{N}{1,3}", KANA, DEEPSEEK3], false)
        }
        "tekken" => (vec![TEKKEN], true),
        "gpt-4o" | "llama4" | "kanana2" | "talkie" | "minimax-m2" => (vec![GPT4O], false),
        "poro-chat" | "bloom" | "gpt3-finnish" => (vec![BLOOM], false),
        "viking" => (vec![BLOOM, r"\p{N}"], false),
        "seed-coder" => (vec![SEED_CODER], false),
        "bailingmoe" | "bailingmoe2" | "llada-moe" => (vec![BAILING], false),
        "minicpm5" => (vec![r"\p{N}{1,3}", MINICPM5], true),
        other => {
            let other = brief(other);
            return Err(refused(format_args!(
                "a known tokenizer.ggml.pre or a tokenizer.json beside the file, got {other}"
            )));
        }
    };
    Ok(PreTokenizer { patterns, ignore_merges })
}
