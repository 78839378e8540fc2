//! Compares this crate's language of chat templates with Jinja, and renders templates that try to
//! exhaust a machine.

use std::fs;
use std::time::{Duration, Instant};

use mlx_primitives_llama::{ChatOptions, ChatTemplate, message};
use serde_json::{Value, json};

use crate::support::{Checked, message as error_of};

fn rendered(source: &str, variables: &Value) -> mlx_primitives::Result<String> {
    let config = json!({"bos_token": "<s>", "eos_token": "</s>", "chat_template": source});
    let template = ChatTemplate::parse(&config.to_string())?.expect("a template");
    let options = ChatOptions {
        tools: variables["tools"].as_array().cloned(),
        variables: variables.as_object().cloned().unwrap_or_default(),
        ..ChatOptions::default()
    };
    let messages = match variables["messages"].as_array() {
        Some(messages) => messages.clone(),
        None => vec![message("user", "hi")],
    };
    template.render(&messages, &options)
}

/// `snippets.py`, in the fixture's folder, renders the expected texts with transformers.
#[test(simulated = never)]
fn snippets_are_rendered_as_by_jinja_or_refused() -> Checked {
    let path =
        concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/chat_templates/snippets.json");
    let fixture: Value = serde_json::from_str(&fs::read_to_string(path)?)?;
    let snippets = fixture["snippets"].as_array().unwrap();
    let (mut same, mut refused, mut differing) = (0, 0, Vec::new());
    for snippet in snippets {
        let source = snippet[0].as_str().unwrap();
        match (rendered(source, &fixture["variables"]), snippet[1].as_str()) {
            (Ok(ours), Some(theirs)) if ours == theirs => same += 1,
            (Err(_), None) => refused += 1,
            (ours, theirs) => differing.push(format!("{source}:\n{ours:?}\n{theirs:?}")),
        }
    }
    assert!(differing.is_empty(), "{} differ:\n{}", differing.len(), differing.join("\n\n"));
    assert!(same > 900 && refused > 150, "{same} the same, {refused} refused");
    Ok(())
}

#[test(simulated = never)]
fn what_is_missing_is_named() {
    for (source, name) in [
        ("{{ 'a' | wordwrap(3) }}", "the filter \"wordwrap\", which is not supported"),
        ("{{ 'a' | nothing }}", "the filter \"nothing\", which is not known"),
        ("{{ 1 is nothing }}", "the test \"nothing\", which is not known"),
        ("{{ [1].append(2) }}", "the method \"append\" of list, which changes a value"),
        ("{{ 'a'.translate({}) }}", "the method \"translate\" of str, which is not supported"),
        ("{% include 'a' %}", "the tag \"include\", which is not supported"),
        ("{% other %}", "an unknown tag \"other\""),
        ("{{ lipsum() }}", "the function \"lipsum\", which is not supported"),
        ("{{ other() }}", "the undefined \"other\""),
        ("{{ messages[0].content.x.y }}", "\"y\" of \"x\", which is undefined"),
        ("{{ [1] | map('string') }}", "use `| list`"),
        ("{{ 2 ** 200 }}", "an integer of more than 38 digits"),
        ("{{ raise_exception('No system role.') }}", "No system role."),
        ("{{ 1 is divisibleby(0) }}", "a division by zero"),
        ("{{ 'a' 1 }}", "a syntax error"),
    ] {
        let text = error_of(rendered(source, &json!({})));
        assert!(text.starts_with("[chat_template] expected"), "{source}: {text}");
        assert!(text.contains(name), "{source}: {text}");
    }
}

/// Rendering a template ends in time. If it would take too much time or memory, it ends with an
/// error that names the limit.
#[test(simulated = never)]
fn bounds_hold_for_every_construct() {
    let doubled = |step: &str, last: &str| {
        format!(
            "{{% set n = namespace(x='aaaaaaaa') %}}{{% for i in range(64) %}}{{% set n.x = {step} %}}\
             {{% endfor %}}{last}"
        )
    };
    let long = |begin: &str, part: &str, end: &str| {
        format!("{{{{ {}{begin}{} }}}}", part.repeat(60_000), end.repeat(60_000))
    };
    let nested = "{% if 1 %}".repeat(9_000) + &"{% endif %}".repeat(9_000);
    let deep =
        "{% set n = namespace(x=[1]) %}{% for i in range(99999) %}{% set n.x = STEP %}{% endfor %}";
    let cases = [
        (doubled("n.x ~ n.x", ""), "bytes of text and values"),
        (doubled("n.x + n.x", ""), "bytes of text and values"),
        (doubled("[n.x, n.x] | join", ""), "bytes of text and values"),
        (doubled("[n.x, n.x] | tojson", ""), "bytes of text and values"),
        (doubled("n.x.replace('a', n.x)", ""), "bytes of text and values"),
        (doubled("'%s%s' % (n.x, n.x)", ""), "bytes of text and values"),
        (doubled("'{0}{0}'.format(n.x)", ""), "bytes of text and values"),
        (doubled("n.x | indent(n.x)", "{{ n.x }}"), ""),
        (doubled("[n.x, n.x]", "{{ n.x | string | length }}"), ""),
        (doubled("[n.x, n.x]", "{{ n.x == n.x and [n.x] < [n.x, 1] }}"), "within half a second"),
        (doubled("(n.x, n.x)", "{{ {n.x: 1} }}"), "within half a second"),
        (doubled("{'a': n.x, 'b': n.x}", "{{ n.x | tojson }}"), ""),
        (doubled("(n.x, n.x) | list + [n.x]", "{{ n.x in [n.x] }}"), ""),
        (deep.replace("STEP", "[n.x]"), "nested more than 200 times"),
        (deep.replace("STEP", "{'a': n.x}"), "nested more than 200 times"),
        (deep.replace("STEP", "n"), "a namespace within another value"),
        (deep.replace("STEP", "n.x + [1]"), ""),
        ("{{ 'a' * 10 ** 12 }}".to_owned(), "bytes of text and values"),
        ("{{ [1] * 10 ** 12 }}".to_owned(), "bytes of text and values"),
        ("{{ [1] | batch(10 ** 12, 0) | list }}".to_owned(), "bytes of text and values"),
        ("{{ [1] | slice(10 ** 12) | list }}".to_owned(), ""),
        ("{{ ('a\n' * 99999) | indent(99999) }}".to_owned(), "bytes of text and values"),
        ("{{ '%*d' % (10 ** 12, 1) }}".to_owned(), "bytes of text and values"),
        ("{{ '%.*f' % (10 ** 12, 1) }}".to_owned(), "1000 digits"),
        ("{{ '{:>99999999999}'.format(1) }}".to_owned(), "bytes of text and values"),
        ("{{ range(10 ** 12) }}".to_owned(), "a range of more than 100000 items"),
        ("{{ [1] | tojson(indent=10 ** 9) }}".to_owned(), "64 spaces"),
        (
            "{% macro f() %}{{ f() }}{{ f() }}{% endmacro %}{{ f() }}".to_owned(),
            "within each other",
        ),
        ("{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}".to_owned(), "within each other"),
        (
            "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
                .to_owned(),
            "within half a second",
        ),
        (nested, "parts within each other"),
        (long("1", "", "+1"), ""),
        (long("1", "not ", ""), "parts within each other"),
        (long("1", "-", ""), "parts within each other"),
        (long("1", "(", ")"), "parts within each other"),
        (long("1", "[", "]"), "parts within each other"),
        (long("1", "1 if 1 else ", ""), "parts within each other"),
        (long("1", "", "|abs"), ""),
        (long("messages", "", ".a"), "undefined"),
        (long("messages", "", "[0]"), "undefined"),
        ("x".repeat((1 << 20) + 1), "bytes of source"),
    ];
    for (source, said) in cases {
        let shown: String = source.chars().take(100).collect();
        let started = Instant::now();
        let outcome = rendered(&source, &json!({}));
        let took = started.elapsed();
        assert!(took < Duration::from_secs(10), "{shown}: {took:?}");
        match outcome {
            Ok(text) => assert!(said.is_empty(), "{shown}: {} bytes", text.len()),
            Err(error) => {
                let text = error.to_string();
                // On a busy machine, rendering may reach the time limit before it reaches the
                // expected limit.
                let bounded = text.contains("within half a second");
                assert!(bounded || text.contains(said), "{shown}: {text}");
                assert!(text.len() < 500, "{shown}: {text}");
            }
        }
    }
}

#[test(simulated = never)]
fn honest_work_fits_into_the_bounds() -> Checked {
    let template = "{% set n = namespace(t='') %}{% for m in messages %}{% set n.t = n.t ~ '<|' ~ m.role ~ '|>' \
                    ~ m.content | trim ~ eos_token %}{% endfor %}{{ n.t }}";
    let content = "All work and no play. ".repeat(100);
    let messages: Vec<Value> = (0..500).map(|_| message("user", &content)).collect();
    let text = rendered(template, &json!({"messages": messages}))?;
    assert_eq!(text.len(), 500 * (content.trim().len() + "<|user|></s>".len()));
    // A prompt of ten megabytes.
    let messages = [message("user", &"a".repeat(10 << 20))];
    let text = rendered("{{ messages[0].content | trim }}!", &json!({"messages": messages}))?;
    assert_eq!(text.len(), (10 << 20) + 1);
    Ok(())
}

#[test(simulated = never)]
fn deep_messages_are_refused() {
    let mut deep = json!(1);
    for _ in 0..300 {
        deep = json!([deep]);
    }
    let mut content = message("user", "hi");
    content["deep"] = deep;
    let text = error_of(rendered("{{ messages }}", &json!({"messages": [content]})));
    assert!(text.contains("values nested more than 200 times"), "{text}");
}
