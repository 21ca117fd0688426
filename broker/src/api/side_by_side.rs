//! Parts of one request, worked on side by side: the controller then makes many changes durable with one write.

use futures::{stream, Future, StreamExt};
use std::collections::BTreeMap;

/// Parts that are under way at a time.
const AT_ONCE: usize = 256;

/// Runs the parts and returns what they return, in their order.
pub(super) async fn side_by_side<F: Future>(parts: impl IntoIterator<Item = F>) -> Vec<F::Output> {
    stream::iter(parts).buffered(AT_ONCE).collect().await
}

/// How often each name stands in a request. Names that stand more than once contradict each other; each is
/// answered once, as an error.
pub(super) struct Times<K>(BTreeMap<K, u32>);

impl<K: Ord> Times<K> {
    pub fn of(names: impl IntoIterator<Item = K>) -> Self {
        let mut times = BTreeMap::new();
        for name in names {
            *times.entry(name).or_default() += 1;
        }
        Times(times)
    }

    /// How often it stands there; `None` the second time, as it has its answer.
    pub fn take(&mut self, name: &K) -> Option<u32> {
        self.0.remove(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_stands_twice_has_one_answer() {
        let mut times = Times::of(["a", "b", "a"]);
        assert_eq!((times.take(&"a"), times.take(&"b"), times.take(&"a")), (Some(2), Some(1), None));
    }
}
