// SPDX-License-Identifier: MIT
// This view is not written yet.
"use strict";
