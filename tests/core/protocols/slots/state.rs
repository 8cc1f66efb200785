//! The slots of the store, the processes that hold them, and the messages between them.

use super::{Code, STEP, WINDOW};

/// A step, named by the time until its units are released.
pub(super) type Step = u8;

/// A process, and the slot that the process may hold. `left` is how much longer the slot surely lasts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) enum Process {
    #[default]
    Idle,
    /// `asked` becomes `left` if the store answers that the slot is taken or renewed.
    Asking {
        asked: u8,
    },
    Held {
        left: u8,
        step: Step,
    },
    Renewing {
        left: u8,
        asked: u8,
        step: Step,
        returned: bool,
    },
    /// The outcome of a renewal is unknown.
    Expiring {
        left: u8,
        step: Step,
    },
    /// Only mistakes remember the step.
    Returned {
        step: Step,
    },
}

/// `by` is the process that waits for the answer; `None` after a timeout or a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Message {
    Take {
        by: Option<usize>,
    },
    Renew {
        by: Option<usize>,
        step: Step,
    },
    /// Only mistakes send this.
    RenewReturned {
        step: Step,
    },
    Return {
        step: Step,
    },
    /// Only mistakes send this.
    ReturnLost {
        step: Step,
    },
    /// Has the step of the slot if the store has charged or renewed it.
    Answer {
        to: usize,
        step: Option<Step>,
    },
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct State {
    /// The time since the begin of the store's step.
    pub(super) now: u8,
    /// The units of each step.
    pub(super) charged: Vec<(Step, u8)>,
    pub(super) processes: Vec<Process>,
    pub(super) messages: Vec<Message>,
    /// For how long nothing has held or asked for a slot.
    pub(super) quiet: u8,
    pub(super) has_robbed: bool,
    pub(super) has_revived: bool,
    /// Whether the return of a lost slot has taken another.
    pub(super) has_taken: bool,
}

impl Process {
    pub(super) const fn is_held(self) -> bool {
        match self {
            Self::Held { left, .. } | Self::Expiring { left, .. } => left > 0,
            Self::Renewing { left, returned, .. } => left > 0 && !returned,
            _ => false,
        }
    }

    pub(super) const fn waits(self) -> bool {
        matches!(self, Self::Asking { .. } | Self::Renewing { .. })
    }

    fn pass(&mut self) {
        match self {
            Self::Idle => {}
            Self::Asking { asked } => pass([asked]),
            Self::Returned { step } => pass([step]),
            Self::Held { left, step } | Self::Expiring { left, step } => pass([left, step]),
            Self::Renewing {
                left, asked, step, ..
            } => pass([left, asked, step]),
        }
    }
}

impl Message {
    fn pass(&mut self) {
        match self {
            Self::Renew { step, .. }
            | Self::RenewReturned { step }
            | Self::Return { step }
            | Self::ReturnLost { step }
            | Self::Answer {
                step: Some(step), ..
            } => pass([step]),
            Self::Take { .. } | Self::Answer { step: None, .. } => {}
        }
    }

    /// Whether the right store does nothing about this.
    const fn is_void(&self) -> bool {
        matches!(
            self,
            Self::Return { step: 0 } | Self::Renew { by: None, step: 0 }
        )
    }
}

fn pass<const N: usize>(times: [&mut u8; N]) {
    for time in times {
        *time = time.saturating_sub(1);
    }
}

impl State {
    pub(super) fn used(&self) -> u8 {
        self.charged.iter().map(|(_, units)| units).sum()
    }

    pub(super) fn held(&self) -> u8 {
        let held = self.processes.iter().filter(|it| it.is_held());
        held.count().try_into().unwrap()
    }

    fn is_active(&self) -> bool {
        let asks = |it: &Message| matches!(it, Message::Take { .. } | Message::Renew { .. });
        let holds = |it: &Process| it.is_held() || matches!(it, Process::Asking { .. });
        self.processes.iter().any(holds) || self.messages.iter().any(asks)
    }

    pub(super) fn pass(&mut self) {
        self.quiet = (self.quiet + 1).min(WINDOW + STEP);
        self.now = (self.now + 1) % STEP;
        for (step, _) in &mut self.charged {
            *step -= 1;
        }
        self.processes.iter_mut().for_each(Process::pass);
        self.messages.iter_mut().for_each(Message::pass);
    }

    /// Drops details that make no difference, to reduce the number of states.
    pub(super) fn forget(&mut self, code: Code) {
        self.charged.retain(|(step, units)| *step > 0 && *units > 0);
        self.charged.sort_unstable();
        if !matches!(code, Code::Revives | Code::ReturnsAny) {
            self.messages.retain(|it| !it.is_void());
        }
        self.messages.sort_unstable();
        for process in &mut self.processes {
            if let Process::Expiring { left: 0, .. } | Process::Returned { step: 0 } = process {
                *process = Process::Idle;
            }
        }
        if self.is_active() || self.charged.is_empty() {
            self.quiet = 0;
        }
    }

    pub(super) fn charge(&mut self, code: Code) -> Step {
        let release = WINDOW + STEP - self.now;
        let step = match code {
            Code::ReleasesEarly => release - STEP,
            _ => release,
        };
        match self.charged.iter_mut().find(|it| it.0 == step) {
            Some((_, units)) => *units += 1,
            None => self.charged.push((step, 1)),
        }
        step
    }

    fn units_of(&mut self, step: Step) -> Option<&mut u8> {
        let mut steps = self.charged.iter_mut();
        let found = steps.find(|(it, units)| *it == step && *units > 0);
        found.map(|(_, units)| units)
    }

    pub(super) fn renew(&mut self, step: Step, code: Code) -> Option<Step> {
        match self.units_of(step) {
            Some(units) if code != Code::RenewsWithoutMoving => *units -= 1,
            None if code != Code::Revives => return None,
            _ => {}
        }
        Some(self.charge(code))
    }

    pub(super) fn give_back(&mut self, step: Step, code: Code) {
        if let Some(units) = self.units_of(step) {
            *units -= 1;
        } else if let Some((_, units)) = self.charged.first_mut()
            && code == Code::ReturnsAny
        {
            *units -= 1;
        }
    }

    pub(super) fn give_back_lost(&mut self, step: Step, code: Code) {
        self.has_taken |= self.units_of(step).is_some();
        self.give_back(step, code);
    }

    /// Nothing waits for the answer to the message of a process any more.
    pub(super) fn abandon(&mut self, process: usize) {
        let is_answer = |it: &Message| matches!(it, Message::Answer { to, .. } if *to == process);
        self.messages.retain(|it| !is_answer(it));
        for message in &mut self.messages {
            if let Message::Take { by } | Message::Renew { by, .. } = message
                && *by == Some(process)
            {
                *by = None;
            }
        }
    }
}
