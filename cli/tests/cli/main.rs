//! The operators' tool, run as a program.

#[macro_use]
mod tool;

mod alarms;
mod block;
mod blocks;
mod check;
mod connect;
mod contributors;
mod denied;
mod doctor;
mod drift;
mod explain;
mod formats;
mod guide;
mod hash;
mod identities;
mod inspect;
mod logs;
mod networks;
mod nothing;
mod places;
mod plans;
mod policies;
mod readme;
mod reset;
mod rights;
mod scaffold;
mod simulate;
mod site;
mod slots;
mod top;
mod watch;
