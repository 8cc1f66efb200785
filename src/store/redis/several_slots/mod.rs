//! Operations whose keys are in several slots of a cluster, each slot on some node.

mod call_by_slot;
mod cross_slot;
mod hash_slots;
mod moving;
