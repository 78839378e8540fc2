//! Checks that the bits of a row depend neither on the other rows of a call nor on keys that the
//! row's window hides.

use super::*;

const KEYS: usize = 530;
const QUERIES: usize = 50;

impl<T: Sample> Case<T> {
    /// Computes the results of the queries in a range, as the last queries of a shorter call. The
    /// call leaves out the first `dropped` keys.
    fn part(&self, machine: Machine, queries: std::ops::Range<usize>, dropped: usize) -> Vec<T> {
        let mut call = self.ready();
        call.q.data = call.q.at::<T>(0, 0, queries.start).cast();
        for source in [&mut call.k, &mut call.v] {
            if let Source::Plain(view) = source {
                view.data = view.at::<T>(0, 0, dropped).cast();
            }
        }
        call.queries = queries.len();
        call.keys = KEYS - (QUERIES - queries.end) - dropped;
        call.dropped = dropped;
        let mut out = vec![T::default(); call.heads * call.queries * call.value_dim];
        // SAFETY: the views stay within their vectors, and the output has room for all results.
        unsafe { attention_on(machine, &call, out.as_mut_ptr()) };
        out
    }
}

fn rows_have_one_order_at_any_width<T: Sample>() {
    let mut case = case::<T>((1, 2, 1), (QUERIES, KEYS, 16), (1, 0));
    let row = case.call.heads * case.call.value_dim;
    case.call.causal = true;
    for order in [RowOrder::Tokens, RowOrder::Prompt] {
        for window in [0, 200] {
            (case.call.order, case.call.window) = (order, window);
            for machine in machines() {
                let all = case.run(with_one_thread(machine));
                for queries in [0..1, 3..12, 40..50, 0..50] {
                    for dropped in [0, 100] {
                        // Without a window, all keys are visible, so none can be dropped. With
                        // `RowOrder::Tokens`, chunks of keys begin at fixed distances from the
                        // first key in memory, so dropping keys would move the chunks.
                        if dropped > 0 && (window == 0 || order == RowOrder::Tokens) {
                            continue;
                        }
                        let what = format!(
                            "{queries:?}, {order:?}, window {window}, {dropped} dropped, {:?}",
                            machine.level
                        );
                        let expected = &all[queries.start * row..queries.end * row];
                        assert_same(&case.part(machine, queries.clone(), dropped), expected, &what);
                    }
                }
            }
        }
    }
}

each_type!(rows_have_one_order_at_any_width);
