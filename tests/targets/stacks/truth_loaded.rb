# frozen_string_literal: true

Go.on(*Thread.current[:hooked])
