//! Templates that try to exhaust a machine. Values double, and texts grow quadratically. Sources,
//! values and calls nest deeply. Arguments are large numbers.

use fastrand::Rng;

use super::mutation::part_of;

fn one<'a>(rng: &mut Rng, among: &[&'a str]) -> &'a str {
    among.get(rng.usize(..among.len())).copied().unwrap_or_default()
}

/// Draws a hostile template. Most are short.
pub fn template(rng: &mut Rng) -> String {
    match rng.u8(..10) {
        0..=3 => growing(rng),
        4 => deep_source(rng),
        5 => calls(rng),
        6 => numbers(rng),
        7 => {
            let parts = [growing(rng), growing(rng), numbers(rng)];
            parts.concat()
        }
        8 => repeated(rng),
        _ => around(rng),
    }
}

/// An expression whose value is larger or more deeply nested than `x`.
fn larger(rng: &mut Rng, x: &str) -> String {
    let pattern = part_of(
        rng,
        "X ~ X ¦ X + X ¦ X * 2 ¦ [X, X] ¦ [X] ¦ (X, X) ¦ (X,) ¦ {'a': X} ¦ \
            {'a': X, 'b': X} ¦ [X] * 3 ¦ X | string ¦ X | tojson ¦ X | tojson(indent=9) ¦ \
            X | list ¦ [X, X] | join(X) ¦ [X, X] | join ¦ [X, X] | string ¦ \
            X | string | replace('a', X | string) ¦ (X | string).replace('', X | string) ¦ \
            '%s%s' % (X, X) ¦ '%s%s' | format(X, X) ¦ '{0}{0}'.format(X) ¦ \
            '{:>9999999}'.format(X | string) ¦ X | string | indent(999) ¦ \
            X | string | indent(X | string) ¦ \
            X | string | center(X | string | length * 2) ¦ (X | string).center(9999999) ¦ \
            (X | string).split('a') ¦ (X | string).splitlines() ¦ (X | string).split('')  ¦ \
            (X | string) | list ¦ (X | string).join([X, X] | map('string')) ¦ \
            [X, X] | map('string') | list ¦ [X, X] | map('tojson') | join ¦ [X] + [X] ¦ \
            [X, X] | batch(99999999, X) | list ¦ [X, X] | slice(9999999, X) | list ¦ \
            [X, X] | sort | list ¦ [X, X] | unique | list ¦ [X, X] | groupby('a') | list ¦ \
            {'a': X} | dictsort ¦ {'a': X} | items | list ¦ {'a': X}.items() | list ¦ \
            [X, X] | sum(start=[]) ¦ [[X], [X]] | sum(start=[]) ¦ X | string | upper ¦ \
            X | string | e ¦ X | string | urlencode ¦ X | string | title ¦ \
            (X | string).expandtabs(99999) ¦ (X | string).zfill(9999999) ¦ \
            (X | string).encode() | string ¦ X[::-1] ¦ X[:] ~ X ¦ dict(a=X) ¦ \
            dict(a=X, b=X) ¦ namespace(a=X) ¦ X if X else [X] ¦ X or [X] ¦ \
            X | default(X) | list ¦ [X] | first ¦ [X == X, X] ¦ [X < X, X] ¦ \
            [X in [X, X], X] ¦ X.items ¦ X.format ¦ X ** 9 ¦ X * X ¦ -X ¦ X | abs ¦ \
            X | round(300)",
    );
    pattern.replace('X', x)
}

fn seed(rng: &mut Rng) -> &'static str {
    part_of(
        rng,
        "'a' ¦ 'aaaaaaaa' ¦ [1] ¦ [] ¦ '\\t\\n' ¦ {'a': 1} ¦ 9 ¦ 1.5 ¦ 'é' * 9999 ¦ \
            range(9) ¦ messages ¦ '%s' ¦ (1,)",
    )
}

/// A template that makes a value larger several times, and then uses it.
fn growing(rng: &mut Rng) -> String {
    let count = one(rng, &["9", "40", "64", "300", "2000", "99999"]);
    let steps: Vec<String> = (0..1 + rng.usize(..2))
        .map(|_| format!("{{% set n.x = {} %}}", larger(rng, "n.x")))
        .collect();
    let last = part_of(
        rng,
        " ¦ {{ n.x }} ¦ {{ n.x | string | length }} ¦ {{ n.x | tojson }} ¦ \
            {{ n.x == n.x }} ¦ {{ [n.x] < [n.x] }} ¦ {{ n.x | pprint }} ¦ \
            {% for a in n.x %}{% for b in n.x %}{{ a }}{% endfor %}{% endfor %} ¦ {{ n }} ¦ \
            {{ {n.x: 1} }} ¦ {{ n.x in [n.x] }} ¦ {{ n.x | sort }} ¦ \
            {{ n.x | unique | list }}",
    );
    let seed = seed(rng);
    format!(
        "{{% set n = namespace(x={seed}) %}}{{% for i in range({count}) %}}{}{{% endfor %}}{last}",
        steps.concat()
    )
}

/// A template that repeats the same statements many times.
fn repeated(rng: &mut Rng) -> String {
    let count = one(rng, &["9", "60", "1000", "9000"]).parse().unwrap_or(9);
    let step = larger(rng, "x");
    let statement = match rng.u8(..4) {
        0 => format!("{{% set x %}}{{{{ {step} }}}}{{% endset %}}"),
        1 => format!("{{% filter upper %}}{{{{ {step} }}}}{{% endfilter %}}"),
        2 => format!("{{{{ {step} }}}}"),
        _ => format!("{{% set x = {step} %}}"),
    };
    format!("{{% set x = {} %}}{}", seed(rng), statement.repeat(count))
}

/// A template whose source is deeply nested or long.
fn deep_source(rng: &mut Rng) -> String {
    let count = one(rng, &["50", "149", "151", "5000", "60000"]).parse().unwrap_or(9);
    let (open, middle, close) = match rng.u8(..22) {
        0 => ("(", "1", ")"),
        1 => ("[", "1", "]"),
        2 => ("{'a':", "1", "}"),
        3 => ("not ", "1", ""),
        4 => ("-", "1", ""),
        5 => ("+", "1", ""),
        6 => ("", "1", "+1"),
        7 => ("", "'a'", "~'a'"),
        8 => ("", "1", "|abs"),
        9 => ("", "messages", ".a"),
        10 => ("", "messages", "[0]"),
        11 => ("", "1", " if 1 else 1"),
        12 => ("1 if 1 else ", "1", ""),
        13 => ("", "1", "**1"),
        14 => ("", "1", " == 1"),
        15 => ("", "1", " and 1"),
        16 => ("f(", "1", ")"),
        17 => ("", "f", "()"),
        18 => ("messages[", "0", "]"),
        19 => ("", "1", " is number"),
        20 => ("1 + (2 * (", "1", "))"),
        _ => ("", "'a'", " 'a'"),
    };
    let expression = [open.repeat(count), middle.to_owned(), close.repeat(count)].concat();
    let (open, close) = match rng.u8(..8) {
        0 => ("{% if 1 %}", "{% endif %}"),
        1 => ("{% for x in [1] %}", "{% endfor %}"),
        2 => ("{% macro f() %}", "{% endmacro %}"),
        3 => ("{% set x %}", "{% endset %}"),
        4 => ("{% filter upper %}", "{% endfilter %}"),
        5 => ("{% with %}", "{% endwith %}"),
        6 => ("{% call f() %}", "{% endcall %}"),
        _ => ("{% if 0 %}{% elif 1 %}", "{% endif %}"),
    };
    match rng.u8(..3) {
        0 => [open.repeat(count), "x".to_owned(), close.repeat(count)].concat(),
        1 => format!("{{% for x in {expression} %}}{{% endfor %}}"),
        _ => format!("{{{{ {expression} }}}}"),
    }
}

/// A template with recursive macros, callers and loops.
fn calls(rng: &mut Rng) -> String {
    let more = larger(rng, "a");
    match rng.u8(..6) {
        0 => format!("{{% macro f(a) %}}{{{{ f({more}) }}}}{{% endmacro %}}{{{{ f('a') }}}}"),
        1 => "{% macro f() %}{{ f() }}{{ f() }}{% endmacro %}{{ f() }}".to_owned(),
        2 => "{% macro f() %}{% call f() %}{{ caller() }}{% endcall %}{% endmacro %}{{ f() }}"
            .to_owned(),
        3 => "{% for x in [[1]] recursive %}{{ loop([[1], [1]]) }}{% endfor %}".to_owned(),
        4 => format!(
            "{{% macro f(a) %}}{{% set b %}}{{{{ f({more}) }}}}{{% endset %}}{{{{ b ~ b }}}}{{% endmacro %}}{{{{ f([1]) }}}}"
        ),
        _ => format!(
            "{{% for a in [1] recursive %}}{{% if loop.depth < 99 %}}{{{{ loop({more}) }}}}{{% endif %}}{{% endfor %}}"
        ),
    }
}

fn numbers(rng: &mut Rng) -> String {
    let large =
        one(rng, &["99999", "100000", "10**9", "10**18", "10**37", "2**126", "1e300", "-10**18"]);
    let pattern = part_of(
        rng,
        "{{ 'a' * N }} ¦ {{ [1] * N }} ¦ {{ (1,) * N }} ¦ {{ range(N) | list }} ¦ \
            {% for x in range(N) %}{% for y in range(N) %}{% for z in range(N) %}{% endfor %}{% endfor %}{% endfor %} ¦ \
            {{ 'a\\nb' | indent(N) }} ¦ {{ [1] | batch(N, 0) | list }} ¦ \
            {{ [1] | slice(N) | list }} ¦ {{ '%*d' % (N, 1) }} ¦ {{ '%.*f' % (N, 1) }} ¦ \
            {{ 'a'.center(N) }} ¦ {{ 'a'.ljust(N, 'é') }} ¦ {{ 'a' | center(N) }} ¦ \
            {{ '7'.zfill(N) }} ¦ {{ '\\t'.expandtabs(N) }} ¦ {{ 1.5 | round(N) }} ¦ \
            {{ 15 | round(N) }} ¦ {{ N ** N }} ¦ {{ N * N }} ¦ {{ N // -1 }} ¦ \
            {{ N % -3 }} ¦ {{ 2 ** N }} ¦ {{ 0.5 ** N }} ¦ {{ [1, 2][N] }} ¦ \
            {{ 'abc'[N:] }} ¦ {{ 'abc'[::N] }} ¦ {{ [1, 2, 3][-N:N:N] }} ¦ \
            {{ range(0, N, N) | list }} ¦ {{ range(-N, N) | length }} ¦ \
            {{ [1] | tojson(indent=N) }} ¦ {{ 'a' | truncate(N) }} ¦ \
            {{ 'abc'.find('c', N) }} ¦ {{ 'a a'.split(' ', N) }} ¦ \
            {{ 'aaa'.replace('a', 'b', N) }} ¦ {{ '12' | int(0, N) }} ¦ \
            {{ N | int | string }} ¦ {{ '%d' % N }} ¦ {{ '{:,}'.format(N) }} ¦ \
            {{ N is divisibleby(-1) }}",
    );
    pattern.replace('N', large)
}

/// A template that repeats a piece of syntax many times.
fn around(rng: &mut Rng) -> String {
    let count = one(rng, &["99", "5000", "200000"]).parse().unwrap_or(99);
    let piece = match rng.u8(..16) {
        0 => "\n",
        1 => " ",
        _ => part_of(
            rng,
            "{ ¦ } ¦ {{ ¦ {% ¦ {# ¦ #} ¦ {%raw%} ¦ {%endraw%} ¦ ' ¦ \\ ¦ % ¦ \
            {{ x }} ¦ {% if 1 %} ¦ {% endif %} ¦ {#a#} ¦ ( ¦ a. ¦ 1, ¦ | ¦ ~ ¦ é ¦ \u{0} ¦ \
            {% else %} ¦ {{ x ¦ {{ ' ¦ {% set x=1 %} ¦ %% ¦ {{- ¦ -}} ¦ {%- raw -%}",
        ),
    };
    let text = piece.repeat(count);
    match rng.u8(..4) {
        0 => format!("{{{{ '{text}' % 1 }}}}"),
        1 => format!("{{{{ {text} }}}}"),
        _ => text,
    }
}
