//! [`FirstOf`]: a check of which some charges have alternatives, such as the credits where a plan is used up.

use crate::domain::{
    charge::Charge,
    check::{Check, CheckBuilder},
    decision::Usage,
    error::StoreError,
};

/// A check with alternatives. Each try is an ordinary check: the charges without alternatives, and one alternative of
/// each choice.
#[derive(Debug, Default)]
pub(crate) struct FirstOf {
    /// The charges without alternatives, and the identities that are looked up.
    others: CheckBuilder,
    choices: Vec<Choice>,
}

/// Alternatives, in order. Either each of them has a charge that counts, or they are shadows.
#[derive(Debug)]
pub(crate) struct Choice {
    alternatives: Vec<Vec<Charge>>,
    /// The alternative of the next try.
    current: usize,
    counts: bool,
}

impl Choice {
    /// Creates a choice between these lists of charges, which must not be empty.
    ///
    /// Fails if some alternatives count and others do not: such an alternative would admit everything.
    pub(crate) fn new(alternatives: Vec<Vec<Charge>>) -> Result<Self, StoreError> {
        let counts = |charges: &Vec<Charge>| charges.iter().any(|it| !it.policy().is_shadow());
        let counting = alternatives.iter().filter(|it| counts(it)).count();
        if counting > 0 && counting < alternatives.len() {
            return Err(StoreError::invalid_request(
                "some alternatives count, and others have only shadows or no charges",
            ));
        }
        Ok(Self {
            alternatives,
            current: 0,
            counts: counting > 0,
        })
    }

    fn charges(&self) -> &[Charge] {
        let current = self.alternatives.get(self.current);
        current.map_or(&[], Vec::as_slice)
    }

    /// Replaces the current alternative, if some of these charges are its own, by the next that lacks one of those:
    /// an alternative with all of them is denied for at least as long. Returns whether there is one.
    fn replace(&mut self, denying: &[&Charge]) -> bool {
        let denying = denying.iter().filter(|charge| {
            // The shadows of an alternative that was charged go with it.
            let is_replaced = self.counts != charge.policy().is_shadow();
            is_replaced && has_twin(self.charges(), charge)
        });
        let mut later = self.alternatives.iter().skip(self.current + 1);
        let lacks_one =
            |charges: &Vec<Charge>| !denying.clone().all(|it| is_denied_with(charges, it));
        match later.position(lacks_one) {
            Some(skipped) => {
                self.current += 1 + skipped;
                true
            }
            None => false,
        }
    }
}

impl FirstOf {
    pub(crate) const fn new(others: CheckBuilder, choices: Vec<Choice>) -> Self {
        Self { others, choices }
    }

    /// Returns the check of the current try, with slots of its own. Fails as [`Check::new`] does.
    pub(crate) fn check(&self) -> Result<Check, StoreError> {
        let charges = self.choices.iter().flat_map(Choice::charges);
        self.others.clone().with(charges.cloned())
    }

    /// Whether a charge without alternatives denies, so that each further try is denied, too.
    pub(crate) fn denies_each(&self, denial: &Usage) -> bool {
        let others = self.others.charges();
        denial.denying().any(|charge| has_twin(others, charge))
    }

    /// Replaces the alternatives that this usage, of a denial of the current try or of its shadows, shows to deny.
    /// Returns whether there is a next try.
    ///
    /// If a charge without alternatives denies too, the next try is denied as well, but it may be for a shorter time: a
    /// client whose plan is used up for weeks must not wait so long because of a rate.
    pub(crate) fn replace_denying(&mut self, denial: &Usage) -> bool {
        let others = self.others.charges();
        let denying = denial.denying().filter(|charge| !has_twin(others, charge));
        let denying: Vec<&Charge> = denying.collect();
        let mut goes_on = false;
        for choice in &mut self.choices {
            goes_on |= choice.replace(&denying);
        }
        goes_on
    }
}

/// Whether these charges are surely denied after this one was: they are for the same policy and key, and cost as much.
fn is_denied_with(charges: &[Charge], denied: &Charge) -> bool {
    let twins = charges.iter().filter(|it| it.is_twin_of(denied));
    let cost = twins
        .clone()
        .fold(0, |sum: u64, it| sum.saturating_add(it.cost()));
    cost >= denied.cost() && twins.clone().any(|it| it.policy() == denied.policy())
}

/// Whether one of the charges is for the policy and the key of this one.
fn has_twin(charges: &[Charge], charge: &Charge) -> bool {
    charges.iter().any(|it| it.is_twin_of(charge))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{
        decision::{Count, Decision},
        key::Key,
        policy::Policy,
    };

    fn charge(name: &str) -> Charge {
        let policy = Policy::parse(name, "1/1m").unwrap();
        Charge::new(&policy, Key::new("user", "alice"), 1)
    }

    fn shadow(name: &str) -> Charge {
        let charge = charge(name);
        charge.with_policy(&charge.policy().clone().shadow())
    }

    fn first_of(others: &[&str], choices: &[&[&[&str]]]) -> FirstOf {
        let mut builder = CheckBuilder::default();
        others
            .iter()
            .for_each(|name| builder.add(charge(name)).unwrap());
        let choice = |lists: &&[&[&str]]| {
            let list = |names: &&[&str]| names.iter().map(|name| charge(name)).collect();
            Choice::new(lists.iter().map(list).collect()).unwrap()
        };
        FirstOf::new(builder, choices.iter().map(choice).collect())
    }

    /// The names of the current try after these policies have denied it; `None` if no try follows.
    fn after(first_of: &mut FirstOf, denying: &[&str]) -> Option<Vec<String>> {
        let check = first_of.check().unwrap();
        let count = |charge: &Charge| Count {
            used: u64::from(denying.contains(&charge.policy().name())),
            newest_end_ms: 2_000,
            fits_at_ms: 60_000,
        };
        let counts: Vec<Count> = check.charges().iter().map(count).collect();
        let denial = Decision::new(&check, false, 1_000, &counts).unwrap();
        let names = |check: Check| {
            let charges = check.charges().iter();
            charges.map(|it| it.policy().name().to_owned()).collect()
        };
        let goes_on = first_of.replace_denying(denial.usage());
        goes_on.then(|| names(first_of.check().unwrap()))
    }

    #[test]
    fn an_alternative_that_denies_is_replaced_by_the_next() {
        let mut one = first_of(&["api"], &[&[&["plan"], &["credits"], &["gift"]]]);
        assert_eq!(after(&mut one, &["plan"]).unwrap(), ["api", "credits"]);
        assert_eq!(after(&mut one, &["credits"]).unwrap(), ["api", "gift"]);
        assert_eq!(after(&mut one, &["gift"]), None);
    }

    #[test]
    fn no_try_follows_if_only_charges_without_alternatives_deny() {
        let alternatives: &[&[&str]] = &[&["plan"], &["credits"]];
        let one = || first_of(&["api"], &[alternatives]);
        assert_eq!(after(&mut one(), &["api"]), None);
        let both = after(&mut one(), &["api", "plan"]);
        assert_eq!(
            both.unwrap(),
            ["api", "credits"],
            "may be denied for a shorter time"
        );
        let mut also_charged = first_of(&["plan"], &[alternatives]);
        assert_eq!(after(&mut also_charged, &["plan"]), None);
    }

    #[test]
    fn a_list_with_a_lower_cost_is_tried() {
        let costing = |cost| vec![charge("plan").with_cost(cost)];
        let choice = Choice::new(vec![costing(2), costing(3), costing(1)]).unwrap();
        let mut one = FirstOf::new(CheckBuilder::default(), vec![choice]);
        assert_eq!(after(&mut one, &["plan"]).unwrap(), ["plan"]);
        assert_eq!(one.check().unwrap().charges()[0].cost(), 1);
    }

    #[test]
    fn of_several_choices_those_that_deny_are_replaced() {
        let choices: &[&[&[&str]]] = &[&[&["plan"], &["credits"]], &[&["near"], &["far"]]];
        let mut two = first_of(&[], choices);
        assert_eq!(after(&mut two, &["near"]).unwrap(), ["plan", "far"]);
        assert_eq!(after(&mut two, &["plan"]).unwrap(), ["credits", "far"]);
        assert_eq!(after(&mut two, &["credits"]), None);
        let mut two = first_of(&[], choices);
        assert_eq!(
            after(&mut two, &["plan", "near"]).unwrap(),
            ["credits", "far"]
        );
    }

    #[test]
    fn a_list_that_has_all_denying_charges_is_passed_over() {
        let lists: &[&[&str]] = &[&["api", "plan"], &["api", "credits"], &["other"]];
        let mut one = first_of(&[], &[lists]);
        assert_eq!(after(&mut one, &["api"]).unwrap(), ["other"]);
        for denying in [&["plan"][..], &["api", "plan"]] {
            let mut one = first_of(&[], &[lists]);
            assert_eq!(after(&mut one, denying).unwrap(), ["api", "credits"]);
        }
    }

    #[test]
    fn alternatives_all_count_or_are_all_shadows() {
        let mixed = [
            vec![vec![charge("plan")], vec![shadow("credits")]],
            vec![vec![charge("plan")], vec![]],
        ];
        for alternatives in mixed {
            assert!(Choice::new(alternatives).is_err());
        }
        let shadows = vec![vec![shadow("plan")], vec![shadow("credits")]];
        assert!(Choice::new(shadows).is_ok());
        let with_shadows = vec![vec![charge("plan"), shadow("new")], vec![charge("credits")]];
        assert!(Choice::new(with_shadows).is_ok());
    }
}
