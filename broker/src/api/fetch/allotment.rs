//! How a response's bytes are shared out to partitions (KIP-74): in the request's order, each as much as it asks for
//! and is left; the first batch of all is given whole, however large, so that every consumer gets on.

#[derive(Clone, Copy)]
pub(super) struct Allotment {
    left: usize,
    given: bool,
}

/// What one partition may return.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Portion {
    pub max_bytes: usize,
    pub at_least_one: bool,
}

impl Allotment {
    pub fn new(max_bytes: usize) -> Self {
        Allotment { left: max_bytes, given: false }
    }

    pub fn portion(&self, partition_max_bytes: i32) -> Portion {
        let asked = usize::try_from(partition_max_bytes).unwrap_or(0);
        Portion { max_bytes: asked.min(self.left), at_least_one: !self.given }
    }

    /// A partition returned `bytes`.
    pub fn gave(&mut self, bytes: usize) {
        self.left = self.left.saturating_sub(bytes);
        self.given |= bytes > 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn case_33_the_first_batch_is_given_whole_and_then_the_limits_hold() {
        let mut allotment = Allotment::new(100);
        assert_eq!(allotment.portion(1), Portion { max_bytes: 1, at_least_one: true });
        allotment.gave(0);
        assert_eq!(allotment.portion(60), Portion { max_bytes: 60, at_least_one: true });
        allotment.gave(70);
        assert_eq!(allotment.portion(60), Portion { max_bytes: 30, at_least_one: false });
        allotment.gave(30);
        assert_eq!(allotment.portion(60), Portion { max_bytes: 0, at_least_one: false });
    }

    #[test]
    fn negative_limits_are_none() {
        assert_eq!(Allotment::new(9).portion(-1), Portion { max_bytes: 0, at_least_one: true });
    }
}
