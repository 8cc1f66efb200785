use super::result::Outcome;
pub(super) fn page(_: &Outcome) -> String {
    String::new()
}
