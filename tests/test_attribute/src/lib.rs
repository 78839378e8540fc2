//! The attribute `#[test]` of the suite. It replaces Rust's own where the crate is imported with
//! `#[macro_use]`, and registers the function with the harness in `tests/suite/harness/`, which
//! gives every test a time limit and chooses their order.

use proc_macro::{Delimiter, TokenStream, TokenTree};

/// Registers a test. `#[test(seconds = 900)]` overrides the default time limit, `#[test(alone)]`
/// runs it while no other test runs, and `#[ignore = "why"]` below it works as in Rust's harness.
#[proc_macro_attribute]
pub fn test(arguments: TokenStream, function: TokenStream) -> TokenStream {
    let tokens: Vec<TokenTree> = function.clone().into_iter().collect();
    let is_word =
        |token: &TokenTree, word| matches!(token, TokenTree::Ident(i) if i.to_string() == word);
    let Some(name) =
        tokens.iter().position(|token| is_word(token, "fn")).and_then(|at| tokens.get(at + 1))
    else {
        return error("#[test] expects a function");
    };
    let ignored =
        tokens.iter().take_while(|token| !is_word(token, "fn")).any(|token| match token {
            TokenTree::Group(group) if group.delimiter() == Delimiter::Bracket => {
                group.stream().into_iter().next().is_some_and(|token| is_word(&token, "ignore"))
            }
            _ => false,
        });
    let arguments = arguments.to_string();
    let alone = arguments == "alone";
    let seconds = match arguments.strip_prefix("seconds =").map(str::trim) {
        Some(seconds) => seconds,
        None if alone || arguments.is_empty() => "crate::harness::DEFAULT_SECONDS",
        None => return error("#[test] expects nothing, (alone) or (seconds = N)"),
    };
    let registration = format!(
        "::inventory::submit! {{ crate::harness::Test {{ \
           path: concat!(module_path!(), \"::{name}\"), \
           seconds: {seconds}, \
           ignored: {ignored}, \
           alone: {alone}, \
           run: |_| crate::harness::Outcome::into_result({name}()), \
         }} }}"
    );
    match registration.parse::<TokenStream>() {
        Ok(registration) => [function, registration].into_iter().collect(),
        Err(_) => error("#[test] cannot register this function"),
    }
}

fn error(message: &str) -> TokenStream {
    format!("compile_error!({message:?});").parse().unwrap_or_default()
}
