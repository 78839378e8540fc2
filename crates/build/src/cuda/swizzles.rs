//! Rewrites reads of several vector elements, such as `position.xy`, to calls of `swizzled`. CUDA's
//! vectors have members only for single elements.

use crate::front::{Kind, Tokens};

/// Turns `.xy`, `.bgr` and similar reads into calls, unless the source declares a member with that
/// name.
pub(super) fn reads(tokens: &mut Tokens) {
    let is_member = |tokens: &Tokens, at: usize| at > 0 && tokens.at(at - 1) == ".";
    let places: Vec<_> = (0..tokens.len())
        .filter(|&at| tokens.list[at].kind == Kind::Word)
        .filter_map(|at| Some((at, elements(tokens.at(at))?)))
        .collect();
    let declared =
        |name: &str| places.iter().any(|&(at, _)| tokens.at(at) == name && !is_member(tokens, at));
    let reads: Vec<_> = places
        .iter()
        .filter(|(at, _)| {
            is_member(tokens, *at) && tokens.at(at + 1) != "(" && !declared(tokens.at(*at))
        })
        .cloned()
        .collect();
    for (at, elements) in reads {
        // The keyword `template` is needed if the vector's type depends on a template parameter.
        tokens.list[at].text = format!("template swizzled<{elements}>()");
    }
}

/// Returns the indices of the elements that a name of two to four letters selects.
fn elements(name: &str) -> Option<String> {
    if !(2..=4).contains(&name.len()) {
        return None;
    }
    let of = |letters: &str| {
        let found: Option<Vec<_>> = name.chars().map(|letter| letters.find(letter)).collect();
        found.map(|all| all.iter().map(usize::to_string).collect::<Vec<_>>().join(", "))
    };
    of("xyzw").or_else(|| of("rgba"))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn letters_become_numbers() {
        let mut tokens = Tokens::parse(
            "struct Pair { int ab; int zz; }; uint2 at = grid.xy; a = b.wzyx.rg + f(c).xxx; p.zz; \
             q.x; q.xy(); q.xg; q.yyyyy;",
            Path::new("\0"),
        );
        reads(&mut tokens);
        let wanted = "struct Pair { int ab; int zz; }; \
             uint2 at = grid.template swizzled<0, 1>(); \
             a = b.template swizzled<3, 2, 1, 0>().template swizzled<0, 1>() \
             + f(c).template swizzled<0, 0, 0>(); p.zz; q.x; q.xy(); q.xg; q.yyyyy;";
        assert_eq!(tokens.text().split_whitespace().collect::<Vec<_>>().join(" "), wanted);
    }
}
