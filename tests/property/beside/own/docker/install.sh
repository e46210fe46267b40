#!/bin/bash
# A script of the configuration, for the golden bundle.
true
