//! Fuzzes chat templates: modified templates of checkpoints, random statements, and hostile
//! templates.

use std::fs;
use std::path::Path;

use fastrand::Rng;
use mlx_primitives_llama::{ChatOptions, ChatTemplate};
use serde_json::{Map, Value, json};

use super::case::{Case, Fuzzer, Run};
use super::hostile_templates;
use super::mutation::{self, once_in, one, part_of, word};

/// A template may produce 48 MiB of text. Growing the text copies it, so a case may take more
/// memory.
pub const FUZZER: Fuzzer = Fuzzer { name: "chat_template", allowance: 200 << 20, prepare };

const WORDS: [&str; 40] = [
    "{% for m in messages %}",
    "{% endfor %}",
    "{% if loop.first %}",
    "{% elif x %}",
    "{% else %}",
    "{% endif %}",
    "{% set ns = namespace(x=0) %}",
    "{% set ns.x = ns.x ~ ns.x %}",
    "{% macro f(x) %}",
    "{% endmacro %}",
    "{{ f(x) }}",
    "{% generation %}",
    "{% endgeneration %}",
    "{% break %}",
    "{% continue %}",
    "{% raw %}",
    "{% endraw %}",
    "{% set x %}",
    "{% endset %}",
    "{% filter upper %}",
    "{% endfilter %}",
    "{{ messages | tojson(indent=64) }}",
    "{{ raise_exception('no') }}",
    "{{ strftime_now('%Y %Q %') }}",
    "{{",
    "}}",
    "{%",
    "-%}",
    "{#",
    "#}",
    "%",
    "'",
    "(",
    ")",
    "[",
    "]",
    " not ",
    " is defined ",
    " ~ ",
    "{{ caller() }}",
];

fn prepare(folder: &Path) -> anyhow::Result<Run> {
    let _ = folder;
    let fixtures = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/chat_templates");
    let mut templates = Vec::new();
    for entry in fs::read_dir(fixtures)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "jinja") {
            templates.push(fs::read_to_string(path)?);
        }
    }
    templates.sort();
    anyhow::ensure!(templates.len() >= 8, "{} templates", templates.len());
    let cases: Vec<Value> =
        serde_json::from_str(&fs::read_to_string(format!("{fixtures}/cases.json"))?)?;
    Ok(Box::new(move |rng| {
        let source = match rng.u8(..9) {
            8 => hostile_templates::template(rng),
            0 | 4 => one(rng, &templates).clone(),
            1 | 5 => {
                let template: &String = one(rng, &templates);
                mutation::text(rng, template, &WORDS)
            }
            2 | 6 => {
                let template = statements(rng, 3);
                mutation::text(rng, &template, &WORDS)
            }
            _ => statements(rng, 3),
        };
        let conversation = one(rng, &cases);
        let mut config = conversation["special_tokens"].clone();
        config["chat_template"] = match once_in(rng, 8) {
            true => json!([{"name": "default", "template": source}, {"name": "x", "template": ""}]),
            false => json!(source),
        };
        let mut text = config.to_string();
        if once_in(rng, 10) {
            mutation::json(rng, &mut config);
            text = mutation::written(rng, &config);
        }
        let rendered = render(rng, &text, conversation);
        Case::new(text.len() + conversation.to_string().len(), &rendered)
    }))
}

fn render(
    rng: &mut Rng,
    config: &str,
    conversation: &Value,
) -> mlx_primitives::Result<Option<String>> {
    let Some(template) = ChatTemplate::parse(config)? else { return Ok(None) };
    let mut conversation = conversation.clone();
    if once_in(rng, 3) {
        mutation::json(rng, &mut conversation["messages"]);
        let text = conversation["messages"].to_string();
        conversation["messages"] = serde_json::from_str(&text).unwrap_or_default();
    }
    let empty = Vec::new();
    let messages = conversation["messages"].as_array().unwrap_or(&empty);
    let options = ChatOptions {
        add_generation_prompt: rng.bool(),
        tools: conversation["tools"].as_array().cloned(),
        template: once_in(rng, 20).then(|| "x".to_owned()),
        variables: conversation["variables"].as_object().cloned().unwrap_or_else(Map::new),
    };
    template.render(messages, &options).map(Some)
}

/// Numbers of repetitions, widths and indices, most of them small.
fn number(rng: &mut Rng) -> String {
    let numbers = ["0", "1", "-1", "2", "3", "7", "64"];
    let large =
        ["1000", "99999", "100000", "1000000", "2147483648", "9223372036854775807", "1e300"];
    match once_in(rng, 4) {
        true => (*one(rng, &large)).to_owned(),
        false => (*one(rng, &numbers)).to_owned(),
    }
}

fn variable(rng: &mut Rng) -> &'static str {
    word(
        rng,
        &["messages", "m", "x", "ns.x", "m.content", "messages[0]['role']", "tools", "loop", "f"],
    )
}

fn expression(rng: &mut Rng, depth: u32) -> String {
    if depth == 0 {
        return match rng.u8(..4) {
            0 => number(rng),
            1 => word(rng, &["'abc'", "''", "'é🦊'", "none", "true", "[]", "{}", "'a\\nb'"])
                .to_owned(),
            _ => variable(rng).to_owned(),
        };
    }
    let a = expression(rng, depth - 1);
    match rng.u8(..16) {
        0..=2 => {
            let operator =
                one(rng, &["+", "-", "*", "/", "//", "%", "**", "~", "in", "==", "<", "and", "or"]);
            format!("({a} {operator} {})", expression(rng, depth - 1))
        }
        3..=6 => {
            let n = number(rng);
            let filters = "upper ¦ lower ¦ trim ¦ length ¦ list ¦ tojson ¦ first ¦ last ¦ join ¦ reverse ¦ \
                sort ¦ unique ¦ items ¦ string ¦ int ¦ float ¦ abs ¦ sum ¦ min ¦ max ¦ \
                capitalize ¦ title ¦ escape ¦ safe ¦ default('x') ¦ pprint ¦ lines ¦ dictsort ¦ \
                urlencode ¦ bool ¦ groupby('role') ¦ map('upper') ¦ map(attribute='content') ¦ \
                select ¦ reject('none') ¦ selectattr('role') ¦ replace('a', 'aaaa') ¦ \
                replace('', 'x') ¦ split('a') ¦ chain([1]) ¦ zip([1]) ¦ attr('role') ¦ \
                format(1) ¦ tojson(indent=3, sort_keys=true, ensure_ascii=true)";
            let counted = "indent ¦ batch ¦ slice ¦ round ¦ center ¦ truncate ¦ wordwrap ¦ \
                indent(1)|indent";
            match once_in(rng, 3) {
                true => format!("({a} | {}({n}))", part_of(rng, counted)),
                false => format!("({a} | {})", part_of(rng, filters)),
            }
        }
        7 => format!("{a}[{}]", number(rng)),
        8 => format!("{a}[{}:{}:{}]", number(rng), number(rng), number(rng)),
        9 => {
            let methods = "strip() ¦ split() ¦ upper() ¦ items() ¦ keys() ¦ values() ¦ get('role') ¦ \
                startswith('a') ¦ replace('a', 'bb') ¦ format(1, 2) ¦ join(['a', 'b']) ¦ \
                find('a') ¦ count('') ¦ splitlines() ¦ split('') ¦ rstrip('é') ¦ title() ¦ \
                isdigit() ¦ append(1)";
            format!("{a}.{}", part_of(rng, methods))
        }
        10 => format!("range({})", number(rng)),
        11 => format!("range({}, {}, {})", number(rng), number(rng), number(rng)),
        12 => format!("[{a}, {}]", expression(rng, depth - 1)),
        13 => format!("({a} if {} else {})", expression(rng, 0), expression(rng, 0)),
        14 => format!(
            "({a} is {})",
            one(rng, &["defined", "string", "mapping", "iterable", "divisibleby(0)"])
        ),
        _ => format!(
            "{}({a})",
            one(rng, &["f", "namespace", "dict", "strftime_now", "debug", "raise_exception"])
        ),
    }
}

fn statements(rng: &mut Rng, depth: u32) -> String {
    let mut text = String::new();
    for _ in 0..1 + rng.usize(..3) {
        let value = expression(rng, 2);
        let body = if depth > 0 { statements(rng, depth - 1) } else { String::new() };
        text += &match rng.u8(..12) {
            0 | 1 => format!("{{% for x in {value} %}}{body}{{% endfor %}}"),
            2 => format!("{{% for m in messages if {value} %}}{body}{{% else %}}{{% endfor %}}"),
            3 => format!("{{% if {value} %}}{body}{{% endif %}}"),
            4 => format!("{{% set x = {value} %}}{body}"),
            5 => format!("{{% set ns = namespace(x={value}) %}}{body}"),
            6 => format!("{{% set ns.x = {value} %}}{body}"),
            7 => format!("{{% macro f(x) %}}{body}{{% endmacro %}}"),
            8 => format!("{{% set x %}}{body}{{% endset %}}"),
            9 => format!(
                "{{% filter {} %}}{body}{{% endfilter %}}",
                one(rng, &["upper", "indent(3)", "trim"])
            ),
            _ => format!("{{{{ {value} }}}}{body}"),
        };
    }
    text
}
