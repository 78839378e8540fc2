//! Tests attention on queries, keys and values with unusual strides.

use super::*;

#[test]
fn strides_of_any_kind() {
    for extents in [(1, 70, 64), (2, 70, 40), (30, 70, 40), (30, 70, 64)] {
        for layout in [(1, 9), (2, 0), (3, 5)] {
            case::<f32>((1, 4, 2), extents, layout).check(&format!("{extents:?} {layout:?}"));
            case::<Bf16>((1, 4, 2), extents, layout).check(&format!("{extents:?} {layout:?}"));
        }
        // The views read queries and keys backward. The values have the usual order, but all batch
        // entries share the values of one entry.
        let case = case::<f32>((2, 4, 2), extents, (1, 0));
        let backwards = |view: &mut View, floats: usize| {
            view.data = view.data.cast::<f32>().wrapping_add(floats - 1).cast();
            view.strides = view.strides.map(|stride| -stride);
        };
        let mut call = case.ready();
        backwards(&mut call.q, 2 * 4 * extents.0 * extents.2);
        if let (Source::Plain(k), Source::Plain(v)) = (&mut call.k, &mut call.v) {
            backwards(k, 2 * 2 * extents.1 * extents.2);
            v.strides[0] = 0;
        }
        let expected = case.reference_of(&call);
        for machine in machines() {
            let mut out = vec![0.0f32; expected.len()];
            // SAFETY: the views stay within their vectors.
            unsafe { attention_on(machine, &call, out.as_mut_ptr()) };
            assert_close(&out, &expected, 1e-5, 4e-6, &format!("{extents:?} backwards"));
        }
    }
}
