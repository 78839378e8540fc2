//! Compares the output of chat templates with the output of transformers. Some templates must be
//! refused.

use std::collections::BTreeMap;
use std::fs;

use mlx_primitives_llama::{ChatOptions, ChatTemplate, message};
use serde_json::{Value, json};

use crate::support::{Checked, message as error_of};

const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/chat_templates");

fn template(source: &str, tokens: &Value) -> ChatTemplate {
    let mut config = tokens.clone();
    config["chat_template"] = json!(source);
    ChatTemplate::parse(&config.to_string()).unwrap().unwrap()
}

fn rendered(source: &str) -> mlx_primitives::Result<String> {
    let messages = [message("user", "hi")];
    template(source, &json!({})).render(&messages, &ChatOptions::default())
}

#[test]
fn conversations_are_rendered_as_by_transformers() -> Checked {
    let cases: Value =
        serde_json::from_str(&fs::read_to_string(format!("{FIXTURES}/cases.json"))?)?;
    let mut counts: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    let mut differing = Vec::new();
    for (i, case) in cases.as_array().unwrap().iter().enumerate() {
        let name = case["template"].as_str().unwrap();
        let source = fs::read_to_string(format!("{FIXTURES}/{name}.jinja"))?;
        let options = ChatOptions {
            add_generation_prompt: case["add_generation_prompt"].as_bool().unwrap(),
            tools: case["tools"].as_array().cloned(),
            variables: case["variables"].as_object().unwrap().clone(),
            ..ChatOptions::default()
        };
        let messages = case["messages"].as_array().unwrap();
        let ours = template(&source, &case["special_tokens"]).render(messages, &options);
        let count = counts.entry(name).or_default();
        match (ours, case["text"].as_str()) {
            (Ok(ours), Some(theirs)) if ours == theirs => count.0 += 1,
            (Err(_), None) => count.1 += 1,
            (ours, theirs) => differing.push(format!("case {i}, {name}:\n{ours:?}\n{theirs:?}")),
        }
    }
    assert!(differing.is_empty(), "{} differ:\n{}", differing.len(), differing.join("\n\n"));
    assert_eq!(counts.len(), 8);
    assert!(counts.values().all(|(rendered, _)| *rendered >= 8), "{counts:?}");
    Ok(())
}

#[test]
fn templates_come_from_where_transformers_looks() -> Checked {
    let directory = tempfile::tempdir()?;
    let path = directory.path();
    let write = |name: &str, text: &str| fs::write(path.join(name), text);
    assert!(ChatTemplate::load(path)?.is_none());
    write("tokenizer_config.json", r#"{"eos_token": {"content": "</s>"}, "chat_template": null}"#)?;
    assert!(ChatTemplate::load(path)?.is_none());

    let render = |options: &ChatOptions| -> anyhow::Result<String> {
        let template = ChatTemplate::load(path)?.expect("a template");
        assert_eq!(template.special_token("eos_token"), Some("</s>"));
        assert_eq!(template.special_token("bos_token"), None);
        Ok(template.render(&[message("user", "hi")], options)?)
    };
    let plain = ChatOptions::default();
    let tools = ChatOptions { tools: Some(vec![json!({})]), ..ChatOptions::default() };
    let named = |name: &str| ChatOptions { template: Some(name.to_owned()), ..plain.clone() };
    let with = |value: Value| {
        json!({"eos_token": {"content": "</s>"}, "chat_template": value}).to_string()
    };
    write("tokenizer_config.json", &with(json!("one {{ eos_token }}{{ bos_token }}")))?;
    assert_eq!(render(&plain)?, "one </s>");
    assert_eq!(render(&tools)?, "one </s>");
    let list = json!([
        {"name": "default", "template": "plain"},
        {"name": "tool_use", "template": "tools"},
        {"name": "rag", "template": "documents"},
    ]);
    write("tokenizer_config.json", &with(list))?;
    assert_eq!(render(&plain)?, "plain");
    assert_eq!(render(&tools)?, "tools");
    assert_eq!(render(&named("rag"))?, "documents");
    let text = render(&named("other")).unwrap_err().to_string();
    assert!(text.contains(r#"["default", "rag", "tool_use"], got "other""#), "{text}");
    // A template file takes precedence over the template in the configuration.
    write("chat_template.jinja", "from a file")?;
    assert_eq!(render(&plain)?, "from a file");
    fs::create_dir(path.join("additional_chat_templates"))?;
    write("additional_chat_templates/tool_use.jinja", "tools from a file")?;
    assert_eq!(
        (render(&plain)?, render(&tools)?),
        ("from a file".into(), "tools from a file".into())
    );

    for bad in ["[", r#"{"chat_template": 3}"#, r#"{"chat_template": [{"name": "x"}]}"#] {
        write("tokenizer_config.json", bad)?;
        let text = error_of(ChatTemplate::load(path));
        assert!(text.contains("tokenizer_config.json: [chat_template] expected"), "{text}");
    }
    Ok(())
}

#[test]
fn dates_are_todays() -> Checked {
    let year = std::process::Command::new("date").arg("+%Y").output()?.stdout;
    let year = String::from_utf8(year)?;
    assert_eq!(rendered("{{ strftime_now('%Y') }}")?, year.trim());
    assert!(rendered("{{ strftime_now('%d %B, %H:%M') }}")?.len() > 10);
    assert!(rendered("{{ strftime_now('%Q%!') }}").is_err());
    Ok(())
}

#[test]
fn json_is_written_as_python_writes_it() -> Checked {
    for (expression, expected) in [
        ("1.0", "1.0"),
        ("1e16", "1e+16"),
        ("123456789012345.5", "123456789012345.5"),
        ("0.0001", "0.0001"),
        ("0.00001", "1e-05"),
        ("1.5e-7", "1.5e-07"),
        ("1e300", "1e+300"),
        ("-0.0", "-0.0"),
        ("12345678901234567890", "12345678901234567890"),
        ("'é\"\\\\\\n<&>\u{7f}🦊'", "\"é\\\"\\\\\\n<&>\u{7f}🦊\""),
        ("[]", "[]"),
        ("[1, [], {}]", "[1, [], {}]"),
        ("{'b': 1, 'a': none}", "{\"b\": 1, \"a\": null}"),
    ] {
        assert_eq!(rendered(&format!("{{{{ ({expression})|tojson }}}}"))?, expected);
    }
    for (arguments, expected) in [
        ("indent=2", "{\n  \"b\": [\n    1,\n    {}\n  ],\n  \"a\": \"é\"\n}"),
        ("sort_keys=true", "{\"a\": \"é\", \"b\": [1, {}]}"),
        ("ensure_ascii=true", "{\"b\": [1, {}], \"a\": \"\\u00e9\"}"),
        ("separators=(',', ':')", "{\"b\":[1,{}],\"a\":\"é\"}"),
        ("indent='\\t', sort_keys=true", "{\n\t\"a\": \"é\",\n\t\"b\": [\n\t\t1,\n\t\t{}\n\t]\n}"),
    ] {
        let source = format!("{{{{ {{'b': [1, {{}}], 'a': 'é'}}|tojson({arguments}) }}}}");
        assert_eq!(rendered(&source)?, expected, "{arguments}");
    }
    for bad in ["nothing|tojson", "1|tojson(indent=100000000)", "1|tojson(other=1)"] {
        assert!(rendered(&format!("{{{{ {bad} }}}}")).is_err(), "{bad}");
    }
    Ok(())
}

#[test]
fn numeric_arguments_of_filters() -> Checked {
    for (expression, expected) in [
        ("'a\nb'|indent(2)", "a\n  b"),
        ("'a\nb'|indent(width=2, first=true)", "  a\n  b"),
        ("[1, 2, 3]|batch(2, 0)|list", "[[1, 2], [3, 0]]"),
        ("[1, 2, 3]|slice(2)|list", "[[1, 2], [3]]"),
        ("'%3d|%s'|format(7, 'x')", "  7|x"),
        ("'%(a)s'|format(a=100001)", "100001"),
        ("'{:>3} {}'.format(7, 1000000)", "  7 1000000"),
    ] {
        assert_eq!(rendered(&format!("{{{{ {expression} }}}}"))?, expected, "{expression}");
    }
    Ok(())
}

#[test]
fn faulty_templates_end_in_errors() {
    for source in [
        "{% for x in %}",
        "{{ unknown_function() }}",
        "{{ 1 // 0 }}",
        "{% if %}",
        "{%",
        "{% generation",
    ] {
        let text = error_of(rendered(source));
        assert!(text.starts_with("[chat_template] expected"), "{source}: {text}");
    }
    let template = template("{{ messages }}", &json!({}));
    assert!(template.render(&[json!("hi")], &ChatOptions::default()).is_err());
}
