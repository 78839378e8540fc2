//! The attribute `#[test]` of this project's tests. A crate that imports this one with
//! `#[macro_use]` gets it in place of Rust's attribute. It registers the function with the harness
//! in `tests/harness/`, which gives every test a time limit and chooses the order of the tests.

use proc_macro::{Delimiter, TokenStream, TokenTree};

/// Registers a test. `#[test(seconds = 900)]` overrides the default time limit. `#[test(alone)]`
/// runs the test while no other test runs. The simulator can run the threads of a kernel in several
/// orders. `#[test(simulated = once)]` runs the test in only one of these orders, and
/// `#[test(simulated = never)]` does not run it in the simulator. `#[ignore = "why"]` below the
/// attribute works as in Rust's harness.
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
    let (mut seconds, mut simulated) = ("::harness::DEFAULT_SECONDS".to_owned(), "Always");
    let mut alone = false;
    let arguments = arguments.to_string();
    for argument in arguments.split(',').map(str::trim).filter(|argument| !argument.is_empty()) {
        match argument.split_once('=').map_or((argument, ""), |(name, v)| (name.trim(), v.trim())) {
            ("alone", "") => alone = true,
            ("seconds", value) => seconds = value.to_owned(),
            ("simulated", "once") => simulated = "Once",
            ("simulated", "never") => simulated = "Never",
            _ => return error("#[test] expects alone, seconds = N, simulated = once or never"),
        }
    }
    let registration = format!(
        "::harness::inventory::submit! {{ ::harness::Test {{ \
           path: concat!(module_path!(), \"::{name}\"), \
           seconds: {seconds}, \
           ignored: {ignored}, \
           alone: {alone}, \
           simulated: ::harness::Simulated::{simulated}, \
           run: |_| ::harness::Outcome::into_result({name}()), \
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
